"""How a load is cut into pieces, so that the first Layers serve before the last are there; pure.

A piece takes about `PIECE_SECONDS`, as far as it is known how fast weights come, and lies beside
what is ready already: a Worker keeps one run of Layers.
"""

import math
from typing import Self

from meshnet_common.presets import Variant
from meshnet_common.shard_range import ShardRange

PIECE_SECONDS = 30.0
LEAST_PIECE_BYTES = 64 << 20
"""Fewer bytes are not worth a load of their own; so many are tried where no speed is known."""
TURNS = 2
"""Each byte is counted when it is fetched and when it is on the device."""


class Pieces:
    """What is left of a load, and how fast it goes; 0 is not known."""

    def __init__(self, variant: Variant, left: ShardRange, bytes_per_second: float) -> None:
        self.left: ShardRange | None = left
        self._variant = variant
        self._bytes_per_second = bytes_per_second
        self._is_whole = False
        self._began = 0.0
        self._done_bytes = self._later_bytes = 0

    @classmethod
    def whole(cls, variant: Variant, layers: ShardRange) -> Self:
        """Cut nothing off: all of it is ready at once."""
        pieces = cls(variant, layers, 0.0)
        pieces._is_whole = True
        return pieces

    def next(self, ready: ShardRange | None, now: float) -> ShardRange:
        """Begin what comes next beside the Layers that are ready; one Layer at least."""
        assert self.left is not None
        start, end = self.left.start, self.left.end
        if ready is not None and ready.start == end:
            pieces = [ShardRange(first, end) for first in range(start, end)]
        else:
            pieces = [ShardRange(start, last) for last in range(end, start, -1)]
        most_bytes = max(LEAST_PIECE_BYTES, PIECE_SECONDS * self._bytes_per_second)
        if self._is_whole:
            most_bytes = math.inf
        fitting = (each for each in pieces if self._variant.range_bytes(each) <= most_bytes)
        piece = next(fitting, pieces[-1])
        later_bytes = sum(map(self._variant.range_bytes, self.left.minus(piece)))
        self._began, self._later_bytes = now, TURNS * later_bytes
        return piece

    def progress(self, bytes_done: int, bytes_total: int) -> tuple[int, int]:
        """Tell what is done of all pieces, and of how much, from what is so of this one."""
        return self._done_bytes + bytes_done, self._done_bytes + bytes_total + self._later_bytes

    def took(self, piece: ShardRange, bytes_done: int, now: float) -> None:
        """Note that a piece is there."""
        assert self.left is not None
        self.left = next(iter(self.left.minus(piece)), None)
        self._done_bytes += bytes_done
        if now > self._began:
            self._bytes_per_second = self._variant.range_bytes(piece) / (now - self._began)
