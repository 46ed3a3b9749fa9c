"""Which KV Blocks of one Layer are free; numbers only, no tensors.

Free blocks are kept as runs, since a Session whose blocks follow each other is read in place.
So a Session starts in the largest run, where it has the most room to grow.
"""

from bisect import bisect_left, insort


class FreeBlocks:
    """The free blocks among `count` blocks, as sorted half-open runs."""

    def __init__(self, count: int) -> None:
        self._runs: list[tuple[int, int]] = [(0, count)] if count else []

    def __len__(self) -> int:
        return sum(end - start for start, end in self._runs)

    def take_run(self, count: int) -> list[int]:
        """Take blocks that follow each other; empty when no run is long enough."""
        start, end = max(self._runs, key=lambda run: run[1] - run[0], default=(0, 0))
        if end - start < count:
            return []
        return self._take(start, count)

    def take_at(self, start: int, count: int) -> list[int]:
        """Take the blocks from `start` on; empty when one of them is not free."""
        place = bisect_left(self._runs, (start, start))
        if place == len(self._runs) or self._runs[place][0] != start:
            return []
        return self._take(start, count) if self._runs[place][1] - start >= count else []

    def take_any(self, count: int) -> list[int]:
        """Take blocks wherever they are, from the longest runs; empty when too few are free."""
        if len(self) < count:
            return []
        taken: list[int] = []
        while len(taken) < count:
            start, end = max(self._runs, key=lambda run: run[1] - run[0])
            taken += self._take(start, min(count - len(taken), end - start))
        return taken

    def give(self, blocks: list[int]) -> None:
        """Give blocks back, in any order."""
        for block in blocks:
            insort(self._runs, (block, block + 1))
        merged: list[tuple[int, int]] = []
        for start, end in self._runs:
            if merged and merged[-1][1] == start:
                merged[-1] = (merged[-1][0], end)
            else:
                merged.append((start, end))
        self._runs = merged

    def _take(self, start: int, count: int) -> list[int]:
        # A run is only ever taken from its start.
        place = bisect_left(self._runs, (start, start))
        end = self._runs[place][1]
        self._runs[place : place + 1] = [(start + count, end)] if start + count < end else []
        return list(range(start, start + count))
