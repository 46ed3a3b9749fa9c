"""How a Batch of Decode Steps is filled up to a fixed size; numbers only, no tensors.

A captured pass has so many rows, and so many KV Blocks for each, whoever comes. What a Batch lacks
are rows that belong to no Session: they write to a scratch block, which no Session can hold, and
read what they wrote.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

WIDTHS = (1, 2, 4, 8, 16, 32)
"""Rows of a captured pass; a Batch takes the next wider one."""
DEPTHS = (1, 4, 16, 64, 256)
"""KV Blocks that each of its rows may read; the longest Session decides."""


@dataclass(frozen=True, slots=True)
class Size:
    """What a captured pass has room for."""

    width: int
    depth: int


@dataclass(frozen=True, slots=True)
class Row:
    """A Session's next position, and the KV Blocks up to there."""

    position: int
    blocks: Sequence[int]


@dataclass(frozen=True, slots=True)
class Padded:
    """A filled-up Batch: what each row is, writes and reads."""

    positions: tuple[int, ...]
    slots: tuple[int, ...]
    """Where a row's own keys and values go: block x block positions + position."""
    held: tuple[int, ...]
    """How many positions a row looks at, its own included."""
    held_ends: tuple[int, ...]
    tables: tuple[tuple[int, ...], ...]


def size_for(rows: Sequence[Row]) -> Size | None:
    """The smallest size that fits; None where none does."""
    deepest = max(len(row.blocks) for row in rows)
    width = next((width for width in WIDTHS if width >= len(rows)), None)
    depth = next((depth for depth in DEPTHS if depth >= deepest), None)
    return Size(width, depth) if width and depth else None


def pad(rows: Sequence[Row], size: Size, block_positions: int, scratch: int) -> Padded:
    """Fill rows up to a size that fits them."""
    nobodys = Row(0, (scratch,))
    filled = [*rows, *[nobodys] * (size.width - len(rows))]
    held = [row.position + 1 for row in filled]
    return Padded(
        positions=tuple(row.position for row in filled),
        slots=tuple(
            row.blocks[row.position // block_positions] * block_positions
            + row.position % block_positions
            for row in filled
        ),
        held=tuple(held),
        held_ends=tuple(accumulate(held, initial=0)),
        tables=tuple((*row.blocks, *[scratch] * (size.depth - len(row.blocks))) for row in filled),
    )
