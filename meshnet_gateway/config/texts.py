"""Reads what stands in one environment variable: numbers, names, JSON, a federation's records.

What comes out is as raw as what a file holds: types and bounds are told where fields are read.
"""

import json
import re
from typing import Any

from meshnet_common.json_keys import doubled_key

NESTED_TOO_DEEP = "its tables or lists are nested too deep"
PEER_CELLS = ("id", "base_url", "models", "priority", "weight")


def read_words(text: str) -> list[str]:
    """Read names with commas or blanks between."""
    return [word for word in re.split(r"[,\s]+", text) if word]


def read_scalar(text: str) -> int | float | str:
    """Read a number; what is none stays as it is."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def read_json(text: str) -> Any:
    """Read JSON in which no key comes twice; raises ValueError that tells the line."""
    try:
        return json.loads(text, object_pairs_hook=_table)
    except json.JSONDecodeError as error:
        raise ValueError(f"this is no JSON: {error}") from error
    except RecursionError as error:
        raise ValueError(NESTED_TOO_DEEP) from error


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if (key := doubled_key(pairs)) is not None:
        raise ValueError(f"the key `{key}` comes more than once in one object")
    return dict(pairs)


def read_peers(text: str) -> Any:
    """Read a JSON array of records, or compact CSV; no text means none. Raises ValueError.

    CSV is `id|baseUrl|model;model|priority|weight` with commas between the records; a cell that is
    empty or left out at the end has its default. What holds one of these marks needs JSON.
    """
    if not text.strip():
        return []
    if text.lstrip().startswith(("[", "{")):
        return read_json(text)
    return [_read_record(record) for record in text.split(",")]


def _read_record(text: str) -> dict[str, Any]:
    cells = [cell.strip() for cell in text.split("|")]
    record: dict[str, Any] = {
        # A cell too many becomes a field that there is not, which is what its fault says.
        PEER_CELLS[index] if index < len(PEER_CELLS) else f"cell {index + 1}": cell
        for index, cell in enumerate(cells)
        if cell
    }
    if "models" in record:
        record["models"] = [model.strip() for model in record["models"].split(";")]
    numbers = {name: read_scalar(record[name]) for name in ("priority", "weight") if name in record}
    return record | numbers
