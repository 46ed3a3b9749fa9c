"""Tables and JSON for people at a terminal; pure."""

from collections.abc import Sequence

import msgspec

GAP = "  "


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay rows out in columns as wide as their widest cell; the last one is as long as it is."""
    every = [tuple(headings), *(tuple(row) for row in rows)]
    widths = [max(len(row[column]) for row in every) for column in range(len(headings))]
    return [
        GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in every
    ]


def json_lines(value: object) -> list[str]:
    """Write any of our values as JSON that a person can read as well."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode().splitlines()


def size(count: float) -> str:
    """Write bytes with the unit that fits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def duration(seconds: float) -> str:
    """Write a time span with one unit."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s"
