"""Localities: which Workers are near each other, by what they have measured; pure.

A short round trip joins two Workers, whatever they say of themselves. A declared region joins
those that say the same, as long as nothing measured speaks against it: a Worker that is far from
all that it has measured of its region is not in it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from meshnet_common.ids import WorkerId
from meshnet_tracker.planning.snapshot import WorkerView

NEAR_SECONDS = 0.008
"""A round trip that is not longer joins two Workers; within one home or one data center."""
FAR_SECONDS = 0.03
"""A longer one speaks against a region that two Workers have declared."""

UNKNOWN = ""
"""The Locality of a Worker that is near to nobody and has declared no region."""


class _Joined:
    """Disjoint sets of so many Workers, by number."""

    def __init__(self, count: int) -> None:
        self._parents = list(range(count))

    def root(self, number: int) -> int:
        parents = self._parents
        while (parent := parents[number]) != number:
            parents[number] = parents[parent]
            number = parent
        return number

    def join(self, one: int, two: int) -> None:
        first, second = self.root(one), self.root(two)
        # The smaller is the root, so that the order of joining changes nothing.
        self._parents[max(first, second)] = min(first, second)


def near_peers(worker: WorkerView) -> frozenset[WorkerId]:
    """Name the Workers that this one has measured to be near."""
    return frozenset(peer for peer, seconds in worker.round_trips if seconds <= NEAR_SECONDS)


def localities_of(workers: Iterable[WorkerView]) -> dict[WorkerId, str]:
    """Name the Locality of each Worker; it is called after one of its Workers."""
    known = {worker.worker_id: worker for worker in workers}
    numbers = {worker_id: number for number, worker_id in enumerate(sorted(known))}
    joined = _Joined(len(numbers))
    first_of: dict[str, int] = {}
    doubted = _doubted(known)
    for worker_id, number in numbers.items():
        worker = known[worker_id]
        for peer, seconds in worker.round_trips:
            if seconds <= NEAR_SECONDS and peer in numbers:
                joined.join(number, numbers[peer])
        if worker.region and worker_id not in doubted:
            joined.join(number, first_of.setdefault(worker.region, number))
    return _named(joined, numbers, known)


def _doubted(known: Mapping[WorkerId, WorkerView]) -> frozenset[WorkerId]:
    """Find the Workers that are not in the region that they have declared."""
    near, far = set(), set()
    for worker in known.values():
        for peer_id, seconds in worker.round_trips:
            peer = known.get(peer_id)
            if peer is not None and peer.region == worker.region:
                if seconds <= NEAR_SECONDS:
                    near |= {worker.worker_id, peer_id}
                elif seconds > FAR_SECONDS:
                    far |= {worker.worker_id, peer_id}
    return frozenset(far - near)


def _named(
    joined: _Joined, numbers: Mapping[WorkerId, int], known: Mapping[WorkerId, WorkerView]
) -> dict[WorkerId, str]:
    roots = [joined.root(number) for number in range(len(numbers))]
    sizes = Counter(roots)
    # A root is the smallest of its set, also by its id.
    names = list(numbers)
    return {
        worker_id: names[root] if sizes[root] > 1 or known[worker_id].region else UNKNOWN
        for worker_id, root in zip(names, roots, strict=True)
    }
