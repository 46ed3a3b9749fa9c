"""A Shard Range: which Layers, first included, end excluded, never empty."""

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True, order=True)
class ShardRange:
    """The half-open run of Layers [start, end); raises ValueError when empty or negative."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(f"not a Shard Range: [{self.start}, {self.end})")

    @property
    def layers(self) -> range:
        return range(self.start, self.end)

    def __len__(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"[{self.start}, {self.end})"

    def contains(self, other: Self) -> bool:
        return self.start <= other.start and other.end <= self.end

    def touches(self, other: Self) -> bool:
        """Whether the two overlap or lie side by side, so that their union is one range."""
        return self.start <= other.end and other.start <= self.end

    def overlap(self, other: Self) -> "ShardRange | None":
        start, end = max(self.start, other.start), min(self.end, other.end)
        return ShardRange(start, end) if start < end else None

    def union(self, other: Self) -> "ShardRange":
        """Join two ranges that touch; raises ValueError when a gap lies between them."""
        if not self.touches(other):
            raise ValueError(f"a gap lies between {self} and {other}")
        return ShardRange(min(self.start, other.start), max(self.end, other.end))

    def minus(self, other: Self) -> tuple["ShardRange", ...]:
        """What is left of this range without the other: none, one or two ranges."""
        pieces = ((self.start, min(self.end, other.start)), (max(self.start, other.end), self.end))
        return tuple(ShardRange(start, end) for start, end in pieces if start < end)
