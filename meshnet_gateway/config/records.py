"""Reads raw tables into entries field by field, so that one fault does not hide the next."""

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, get_args, get_origin

import msgspec

from meshnet_gateway.config.entries import Entry, Url
from meshnet_gateway.config.faults import Faults, Place, item_of

SPELLINGS: Mapping[str, str] = {"baseUrl": "base_url"}
"""Other names of fields, as records of a federation have them."""

Record = TypeVar("Record", bound=Entry)


def read_record(kind: type[Record], raw: object, place: Place, faults: Faults) -> Record | None:
    """Read a table; returns None where it had a fault, which is in `faults` then."""
    before = len(faults)
    if not isinstance(raw, Mapping):
        faults.add(str(place), f"expected a table of fields, got {_kind_of(raw)}")
        return None
    values = read_fields(kind, raw, place, faults)
    return kind(place=place, **values) if len(faults) == before else None


def read_fields(
    kind: type[Entry], raw: Mapping[str, object], place: Place, faults: Faults
) -> dict[str, Any]:
    """Read a table's fields; the sound ones are returned, and what is sound of their lists."""
    table = {SPELLINGS.get(name, name): value for name, value in raw.items()}
    if len(table) < len(raw):
        faults.add(str(place) or "the settings", "a field is given twice, by both of its names")
    fields = {field.name: field for field in msgspec.structs.fields(kind) if field.name != "place"}
    values: dict[str, Any] = {}
    for name, value in table.items():
        before = len(faults)
        if name not in fields:
            faults.add(place.of(name), _unknown(name, fields))
            continue
        read = _read_value(fields[name].type, value, place.of(name), faults)
        if len(faults) == before or isinstance(read, tuple):
            values[name] = read
    for name, field in fields.items():
        if field.required and name not in table:
            faults.add(place.of(name), "is missing")
    return values


def _read_value(kind: Any, value: object, place: str, faults: Faults) -> Any:
    bare = _bare(kind)
    if _is_record(bare) and isinstance(value, dict):
        return read_record(bare, value, Place(f"{place}."), faults)
    before = len(faults)
    if get_origin(bare) in {tuple, frozenset} and isinstance(value, list | tuple):
        items = [(item, item_of(place, index)) for index, item in enumerate(value)]
        item_kind = get_args(bare)[0]
        if _is_record(item_kind):
            records = [read_record(item_kind, item, where, faults) for item, where in items]
            return tuple(record for record in records if record is not None)
        for item, where in items:
            _convert(item_kind, item, str(where), faults)
    if get_origin(bare) is dict and isinstance(value, dict):
        key_kind, item_kind = get_args(bare)
        for key, item in value.items():
            _convert(key_kind, key, f"{place}.{key}", faults)
            _convert(item_kind, item, f"{place}.{key}", faults)
    return _convert(kind, value, place, faults) if len(faults) == before else None


def _convert(kind: Any, value: object, place: str, faults: Faults) -> Any:
    try:
        return msgspec.convert(value, kind, dec_hook=_read_url)
    except msgspec.ValidationError as error:
        return faults.add(place, str(error).partition(" - at `")[0].replace(" | null", ""))


def _read_url(kind: type, value: object) -> Url:
    if kind is not Url:
        raise NotImplementedError(kind)
    return Url.parse(value)


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Entry)


def _bare(kind: Any) -> Any:
    """Return `X` for `X | None`, and the type behind a bound."""
    if get_origin(kind) is Annotated:
        return _bare(get_args(kind)[0])
    kinds = [one for one in get_args(kind) if one is not type(None)]
    return kinds[0] if type(None) in get_args(kind) and len(kinds) == 1 else kind


def _unknown(name: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(known)}"
    return f"there is no such field; {hint}"


def _kind_of(value: object) -> str:
    names = {list: "a list", str: "text", bool: "a truth value", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)
