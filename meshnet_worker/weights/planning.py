"""Which bytes of a source file are still wanted, and where those that come belong; pure.

source file   ..[ layer 3 ]..[ layer 4 ][ layer 5 ]......[ norms ]
wanted           #########      ########  #########       #######
extents          [-- one request: small gaps are read over --]  [-- next --]
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from meshnet_worker.weights.layout import Part

GAP_BYTES = 32 << 10
"""Up to here, reading on costs less than another request."""


@dataclass(frozen=True, slots=True, order=True)
class Wanted:
    """Bytes [start, end) of a source file that are next in a part."""

    start: int
    end: int
    part: str


def wanted_of(part: Part, file: str, held_bytes: int) -> Iterator[Wanted]:
    """What a part, of whose file the first `held_bytes` are here, still needs of a source file.

    Tensors that follow each other in the source are one run.
    """
    run: Wanted | None = None
    for piece, place in part.places():
        skipped = min(max(held_bytes - place, 0), piece.size_bytes)
        if piece.file != file or skipped == piece.size_bytes:
            continue
        start, end = piece.tensor.start + skipped, piece.tensor.end
        if run is not None and run.end == start:
            run = Wanted(run.start, end, part.name)
            continue
        if run is not None:
            yield run
        run = Wanted(start, end, part.name)
    if run is not None:
        yield run


class FilePlan:
    """The wanted bytes of one source file, in order; it knows how far they have come."""

    def __init__(self, wanted: Iterable[Wanted]) -> None:
        self.received_bytes = 0
        self._wanted = sorted(wanted)
        self._next = 0

    @property
    def next_start(self) -> int | None:
        """The first byte that is still wanted, None when none is."""
        return self._wanted[self._next].start if self._next < len(self._wanted) else None

    def next_extent(self) -> tuple[int, int] | None:
        """Bytes [start, end) to ask for next, None when nothing is wanted any more."""
        start = self.next_start
        if start is None:
            return None
        end = start
        for wanted in islice(self._wanted, self._next, None):
            if wanted.start - end > GAP_BYTES:
                break
            end = wanted.end
        return start, end

    def feed(self, offset: int, data: bytes) -> Iterator[tuple[str, memoryview]]:
        """Sort bytes that came for `offset` into parts; what nobody wants is dropped."""
        view = memoryview(data)
        end = offset + len(data)
        while self._next < len(self._wanted):
            wanted = self._wanted[self._next]
            stop = min(wanted.end, end)
            if not offset <= wanted.start < stop:
                return
            self.received_bytes += stop - wanted.start
            if stop == wanted.end:
                self._next += 1
            else:
                self._wanted[self._next] = Wanted(stop, wanted.end, wanted.part)
            yield wanted.part, view[wanted.start - offset : stop - offset]
