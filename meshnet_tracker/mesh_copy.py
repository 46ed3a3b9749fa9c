"""A copy of the Mesh that is kept up to date by what has changed; pure.

Workers of whom nothing has changed keep the very same view, so that whoever compares two snapshots
sees at once what is new.
"""

from bisect import bisect_left, insort
from collections.abc import Collection
from dataclasses import replace

from meshnet_common.ids import WorkerId
from meshnet_tracker.planning.route_table import RouteTable
from meshnet_tracker.planning.snapshot import Demand, MeshSnapshot, WorkerView
from meshnet_tracker.store.revisions import Revisions
from meshnet_tracker.store.snapshots import (
    MeshChanges,
    MeshNumbers,
    MeshSettings,
    as_seen,
)
from meshnet_tracker.store.words import Load

_NO_SETTINGS = MeshSettings(presets=(), pins=(), drained=frozenset())


class MeshCopy:
    """The Mesh as of `numbers`, and the Route Table of it."""

    def __init__(self) -> None:
        self.numbers = MeshNumbers()
        self.settings = _NO_SETTINGS
        self._revisions = Revisions.of(_NO_SETTINGS.presets)
        self.routes = RouteTable()
        self._views: dict[WorkerId, WorkerView] = {}
        self._order: list[WorkerId] = []
        self._snapshot: MeshSnapshot | None = None

    def apply(self, changes: MeshChanges) -> None:
        """Take in what has changed since `numbers`."""
        self.numbers = changes.numbers
        if changes.settings is not None:
            self._take_settings(changes.settings)
        if changes.is_whole:
            for worker_id in [name for name in self._order if name not in changes.workers]:
                self._set(worker_id, None)
        for worker_id, view in changes.workers.items():
            self._set(worker_id, view)
        for worker_id, load in changes.loads.items():
            self._set_load(worker_id, load)

    def snapshot(self, demand: tuple[Demand, ...] = ()) -> MeshSnapshot:
        """Return the whole Mesh; the same object as long as it is the same Mesh."""
        if self._snapshot is None:
            self._snapshot = MeshSnapshot(
                presets=self.settings.presets,
                workers=tuple(map(self._views.__getitem__, self._order)),
                pins=self.settings.pins,
            )
        return replace(self._snapshot, demand=demand) if demand else self._snapshot

    def _take_settings(self, settings: MeshSettings) -> None:
        moved: Collection[WorkerId] = self.settings.drained ^ settings.drained
        if settings.presets != self.settings.presets:
            moved = self._views.keys()
            self._revisions = Revisions.of(settings.presets)
        self.settings = settings
        self._snapshot = None
        for worker_id in self._views.keys() & moved:
            self._set(worker_id, self._views[worker_id])

    def _set(self, worker_id: WorkerId, after: WorkerView | None) -> None:
        before = self._views.get(worker_id)
        if after is not None:
            after = as_seen(after, self.settings, self._revisions)
            after = after if before is None else _with_old_parts(before, after)
        if after is before:
            return
        self._snapshot = None
        self.routes.apply(before, after)
        if after is None:
            del self._views[worker_id]
            del self._order[bisect_left(self._order, worker_id)]
            return
        if before is None:
            insort(self._order, worker_id)
        self._views[worker_id] = after

    def _set_load(self, worker_id: WorkerId, load: Load) -> None:
        before = self._views.get(worker_id)
        if before is None:
            return
        after = self._views[worker_id] = replace(before, **load._asdict())
        self._snapshot = None
        self.routes.take_load(after)


def _with_old_parts(before: WorkerView, after: WorkerView) -> WorkerView:
    """Keep what is equal: the whole view, else what is long to compare."""
    if after == before:
        return before
    return replace(
        after,
        held=before.held if after.held == before.held else after.held,
        quantizations=before.quantizations
        if after.quantizations == before.quantizations
        else after.quantizations,
        round_trips=before.round_trips
        if after.round_trips == before.round_trips
        else after.round_trips,
    )
