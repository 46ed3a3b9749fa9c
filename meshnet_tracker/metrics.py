"""Figures of one Tracker for Prometheus: what it has counted itself, and gauges to be filled in.

Each Tracker has a registry of its own, so that one process can hold several. No label can grow
without bound: none is a Worker, a Session or a path.
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from meshnet_common.ids import WorkerId
from meshnet_tracker.planning.coverage import CoverageMap
from meshnet_tracker.planning.snapshot import VariantKey
from meshnet_tracker.records import DirectiveRecord, DirectiveTally

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "meshnet_tracker"
MOST_HEARTBEATS_KEPT = 50_000

_SORT = ("kind", "reason", "state")
_VARIANT = ("model", "quantization")
_SHORT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
_LONG_SECONDS = (0.1, 1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)


class Metrics:
    """Counts while the Tracker runs; `exposition` is what a scrape gets."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = self._counter(
            "requests", "Requests answered, by endpoint and status.", "endpoint", "status"
        )
        self._answered: dict[tuple[str, int], Counter] = {}
        self.route_seconds = self._histogram(
            "route_seconds", "Time to choose a Route and sign its ticket.", _SHORT_SECONDS
        )
        self.planning_seconds = self._histogram(
            "planning_seconds", "Time of a planning pass on this Tracker.", _SHORT_SECONDS
        )
        self.planning_failures = self._counter(
            "planning_failures", "Planning passes on this Tracker that failed."
        )
        self._lag = self._histogram(
            "heartbeat_lag_seconds", "By how much a heartbeat came later than told.", _LONG_SECONDS
        )
        self.held = self._gauge("held_requests", "Requests that wait for Layers now.")
        self._ended = self._counter(
            "directives_ended", "Rebalance Directives that were closed.", *_SORT
        )
        self._directive_seconds = self._histogram(
            "directive_seconds", "From issuing a directive to its end.", _LONG_SECONDS, *_SORT
        )
        self._open = self._gauge("directives_open", "Directives that are not finished.", *_SORT)
        self._oldest = self._gauge(
            "directive_oldest_seconds", "Age of the oldest directive that is not finished.", *_SORT
        )
        self._missing = self._gauge(
            "coverage_missing_layers", "Layers of a Variant that nobody serves.", *_VARIANT
        )
        self._thinnest = self._gauge(
            "coverage_thinnest_replicas", "Workers that serve the thinnest Layer.", *_VARIANT
        )
        self._workers = self._gauge("workers", "Workers, by state.", "state")
        self.database_up = self._gauge("database_up", "Whether the database answers.")
        self.plans = self._gauge("plans", "Whether this is the Tracker that plans.")
        self.term = self._gauge("planning_term", "The term in which planning is.")
        self.frozen = self._gauge(
            "planning_frozen", "Whether planning waits, since too many Workers fell silent at once."
        )
        self._heard: dict[WorkerId, float] = {}

    def answered(self, endpoint: str, status: int) -> None:
        # To find a counter by its labels costs as much as all the rest of counting.
        counter = self._answered.get((endpoint, status))
        if counter is None:
            counter = self._answered[endpoint, status] = self._requests.labels(
                endpoint, str(status)
            )
        counter.inc()

    def heartbeat(self, worker_id: WorkerId, told_seconds: float, now: float) -> None:
        """Note a heartbeat, which was told to come so long after the one before."""
        before = self._heard.pop(worker_id, None)
        self._heard[worker_id] = now
        if len(self._heard) > MOST_HEARTBEATS_KEPT:
            # The one that was heard of longest ago.
            del self._heard[next(iter(self._heard))]
        if before is not None:
            self._lag.observe(max(0.0, now - before - told_seconds))

    def directives_ended(self, closed: Iterable[DirectiveRecord]) -> None:
        for record in closed:
            sort = (record.directive.kind, record.directive.reason, record.state)
            self._ended.labels(*sort).inc()
            self._directive_seconds.labels(*sort).observe(record.updated_at - record.issued_at)

    def directives_are_open(self, tallies: Iterable[DirectiveTally], now: float) -> None:
        self._open.clear()
        self._oldest.clear()
        for tally in tallies:
            sort = (tally.kind, tally.reason, tally.state)
            self._open.labels(*sort).set(tally.count)
            self._oldest.labels(*sort).set(max(0.0, now - tally.oldest_at))

    def coverage_is(self, maps: Iterable[tuple[VariantKey, CoverageMap]]) -> None:
        self._missing.clear()
        self._thinnest.clear()
        for key, coverage in maps:
            variant = (key.model, key.quantization)
            self._missing.labels(*variant).set(len(coverage.missing_layers))
            self._thinnest.labels(*variant).set(coverage.replicas)

    def workers_are(self, states: dict[str, int]) -> None:
        for state in ("joining", "live", "leaving", "lost"):
            self._workers.labels(state).set(states.get(state, 0))

    def exposition(self) -> bytes:
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", text, labels, registry=self.registry)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(f"{PREFIX}_{name}", text, labels, buckets=buckets, registry=self.registry)
