"""The Route Table: what routing knows of the Mesh, kept up to date change by change.

A value without a clock: whoever changes it says what time it is. Sessions that this Tracker has
just given away, or seen the end of, count at once, since Workers report that seconds later.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import RouteHop
from meshnet_tracker.planning.route_index import VariantIndex
from meshnet_tracker.planning.snapshot import VariantKey, WorkerView

REPORT_LAG_SECONDS = 1.0
"""A report that comes so soon after a Session was given away may not count it yet."""


class _Note(NamedTuple):
    noted_at: float
    expires_at: float
    sessions: int
    """1 began, or -1 has ended."""


class RouteTable:
    """All Workers by Variant; `choose_route` reads it."""

    def __init__(self) -> None:
        self._workers: dict[WorkerId, WorkerView] = {}
        self._indexes: dict[VariantKey, VariantIndex] = {}
        self._names: dict[str | None, list[WorkerId]] = {}
        self._notes: dict[WorkerId, tuple[_Note, ...]] = {}
        self._expiring: list[tuple[float, tuple[WorkerId, ...]]] = []
        self._now = float("-inf")

    @classmethod
    def of(cls, workers: Iterable[WorkerView]) -> Self:
        """Make the table of these Workers."""
        table = cls()
        for worker in workers:
            table.apply(None, worker)
        for index in table._indexes.values():
            index.rows()
        return table

    def apply(self, before: WorkerView | None, after: WorkerView | None) -> None:
        """Take in what a Worker was and what it is now; None is: not in the Mesh."""
        if after is None:
            known = self._workers.get(before.worker_id) if before else None
            if known is not None:
                self._remove(known)
            return
        before = self._workers.get(after.worker_id)
        self._workers[after.worker_id] = after
        self._name(before, after)
        if before is not None:
            self._take_report(before, after)
        self._put(after, before)

    def take_load(self, worker: WorkerView) -> None:
        """Take in that the load of a known Worker is another one, and nothing else of it."""
        before = self._workers[worker.worker_id]
        self._workers[worker.worker_id] = worker
        self._take_report(before, worker)
        noted = self.noted(worker.worker_id)
        for key in _variants(worker):
            index = self._indexes.get(key)
            if index is not None:
                index.take_load(worker, noted)

    def note(self, hops: Iterable[RouteHop], now: float, seconds: float) -> None:
        """Count one more Session on these Workers until they report it, for so long at most."""
        self._note(hops, _Note(now, now + seconds, 1))

    def note_end(self, hops: Iterable[RouteHop], now: float, seconds: float) -> None:
        """Count one Session less on these Workers until they report it, for so long at most."""
        self._note(hops, _Note(now, now + seconds, -1))

    def settle(self, now: float) -> None:
        """Let time pass: what was noted too long ago counts no more."""
        self._now = max(self._now, now)
        while self._expiring and self._expiring[0][0] <= now:
            for worker_id in heapq.heappop(self._expiring)[1]:
                notes = self._notes.get(worker_id, ())
                left = [note for note in notes if note.expires_at > now]
                if len(left) != len(notes):
                    self._keep_notes(worker_id, left)
                    self._put_noted(self._workers[worker_id])

    def worker(self, worker_id: WorkerId) -> WorkerView | None:
        return self._workers.get(worker_id)

    def names(self, region: str | None = None) -> Sequence[WorkerId]:
        """List all Workers by id, or those that have declared this region."""
        return self._names.get(region, ())

    def noted(self, worker_id: WorkerId) -> int:
        """How many Sessions more a Worker has than it has reported; less is negative."""
        notes = self._notes.get(worker_id)
        return sum([note.sessions for note in notes]) if notes else 0

    def of_variant(self, key: VariantKey) -> VariantIndex:
        """Return who serves a Variant."""
        return self._indexes.get(key) or VariantIndex(key)

    def _name(self, before: WorkerView | None, after: WorkerView | None) -> None:
        gone = {None, before.region} if before else set()
        here = {None, after.region} if after else set()
        for region in gone - here:
            assert before is not None
            names = self._names[region]
            del names[bisect_left(names, before.worker_id)]
            if not names:
                del self._names[region]
        for region in here - gone:
            assert after is not None
            insort(self._names.setdefault(region, []), after.worker_id)

    def _note(self, hops: Iterable[RouteHop], note: _Note) -> None:
        self.settle(note.noted_at)
        named = {WorkerId(hop.worker_id) for hop in hops}
        known = tuple([worker_id for worker_id in named if worker_id in self._workers])
        heapq.heappush(self._expiring, (note.expires_at, known))
        for worker_id in known:
            self._notes[worker_id] = (*self._notes.get(worker_id, ()), note)
            self._put_noted(self._workers[worker_id])

    def _put_noted(self, worker: WorkerView) -> None:
        noted = self.noted(worker.worker_id)
        for shard in worker.held:
            index = self._indexes.get(shard.variant)
            if index is not None:
                index.note(worker.worker_id, noted)

    def _put(self, worker: WorkerView, before: WorkerView | None) -> None:
        noted = self.noted(worker.worker_id)
        for key in _variants(worker) | _variants(before):
            index = self._indexes.get(key)
            if index is None:
                index = self._indexes[key] = VariantIndex(key)
            index.put(worker, noted)
            if not len(index):
                del self._indexes[key]

    def _remove(self, worker: WorkerView) -> None:
        del self._workers[worker.worker_id]
        self._name(worker, None)
        self._keep_notes(worker.worker_id, ())
        for key in _variants(worker):
            index = self._indexes.get(key)
            if index is not None:
                index.remove(worker.worker_id)
                if not len(index):
                    del self._indexes[key]

    def _take_report(self, before: WorkerView, after: WorkerView) -> None:
        """Let a report of a Worker's load stand for what was noted before it."""
        notes = self._notes.get(after.worker_id)
        if not notes or _load(before) == _load(after):
            return
        more = after.sessions + after.queued - before.sessions - before.queued
        left: list[_Note] = []
        for note in notes:
            if note.noted_at <= self._now - REPORT_LAG_SECONDS:
                continue
            if more * note.sessions > 0:
                # It is in the report already.
                more -= note.sessions
            else:
                left.append(note)
        self._keep_notes(after.worker_id, left)

    def _keep_notes(self, worker_id: WorkerId, notes: Sequence[_Note]) -> None:
        if notes:
            self._notes[worker_id] = tuple(notes)
        else:
            self._notes.pop(worker_id, None)


def _variants(worker: WorkerView | None) -> frozenset[VariantKey]:
    return frozenset(shard.variant for shard in worker.held) if worker else frozenset()


def _load(worker: WorkerView) -> tuple[int, int, int | None]:
    return worker.sessions, worker.queued, worker.kv_bytes_free
