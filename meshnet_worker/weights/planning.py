"""Which bytes of a source file are still wanted, and where those that come belong; pure.

source file   ..[ layer 3 ]..[ layer 4 ][ layer 5 ]......[ norms ]
wanted           #########      ########  #########       #######
extents          [-- one request: small gaps are read over --]  [-- next --]
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

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
    """What a part, of whose file the first `held_bytes` are here, still needs of a source file."""
    for piece, place in part.places():
        skipped = min(max(held_bytes - place, 0), piece.size_bytes)
        if piece.file == file and skipped < piece.size_bytes:
            tensor = piece.tensor
            yield Wanted(tensor.start + skipped, tensor.end, part.name)


class FilePlan:
    """The wanted bytes of one source file, in order; it knows how far they have come."""

    def __init__(self, wanted: Iterable[Wanted]) -> None:
        self.received_bytes = 0
        self._wanted = sorted(wanted)
        self._next = 0

    def next_extent(self) -> tuple[int, int] | None:
        """Bytes [start, end) to ask for next, None when nothing is wanted any more."""
        left = self._wanted[self._next :]
        if not left:
            return None
        end = left[0].end
        for wanted in left[1:]:
            if wanted.start - end > GAP_BYTES:
                break
            end = wanted.end
        return left[0].start, end

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
