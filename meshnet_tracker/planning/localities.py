"""Localities: which Workers are near each other, by what they have measured; pure.

A short round trip joins two Workers, whatever they say of themselves. A declared region joins
those that say the same, as long as nothing measured speaks against it: a Worker that is far from
all that it has measured of its region is not in it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from meshnet_common.ids import WorkerId
from meshnet_tracker.planning.snapshot import WorkerView

NEAR_SECONDS = 0.008
"""A round trip that is not longer joins two Workers; within one home or one data center."""
FAR_SECONDS = 0.03
"""A longer one speaks against a region that two Workers have declared."""

UNKNOWN = ""
"""The Locality of a Worker that is near to nobody and has declared no region."""

_Place = tuple[str, str]
"""A Worker or a region, with its kind before it: their names may be the same."""


@dataclass(slots=True)
class _Joined:
    """Disjoint sets of places."""

    parents: dict[_Place, _Place] = field(default_factory=dict)

    def root(self, place: _Place) -> _Place:
        parents = self.parents
        while (parent := parents.get(place, place)) != place:
            parents[place] = parents.get(parent, parent)
            place = parent
        return place

    def join(self, one: _Place, two: _Place) -> None:
        first, second = self.root(one), self.root(two)
        if first != second:
            # The smaller is the root, so that the order of joining changes nothing.
            self.parents[max(first, second)] = min(first, second)


def near_peers(worker: WorkerView) -> frozenset[WorkerId]:
    """Name the Workers that this one has measured to be near."""
    return frozenset(peer for peer, seconds in worker.round_trips if seconds <= NEAR_SECONDS)


def localities_of(workers: Iterable[WorkerView]) -> dict[WorkerId, str]:
    """Name the Locality of each Worker; it is called after one of its Workers."""
    known = {worker.worker_id: worker for worker in workers}
    joined = _Joined()
    for worker in known.values():
        for peer in near_peers(worker):
            if peer in known:
                joined.join(("worker", worker.worker_id), ("worker", peer))
    doubted = _doubted(known)
    for worker in known.values():
        if worker.region and worker.worker_id not in doubted:
            joined.join(("worker", worker.worker_id), ("region", worker.region))
    return _named(joined, known)


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


def _named(joined: _Joined, known: Mapping[WorkerId, WorkerView]) -> dict[WorkerId, str]:
    roots = {worker_id: joined.root(("worker", worker_id)) for worker_id in known}
    sizes = Counter(roots.values())
    members: dict[_Place, list[WorkerId]] = defaultdict(list)
    for worker_id, root in roots.items():
        members[root].append(worker_id)
    names = {root: min(members[root]) for root in members}
    return {
        worker_id: names[root] if sizes[root] > 1 or known[worker_id].region else UNKNOWN
        for worker_id, root in roots.items()
    }
