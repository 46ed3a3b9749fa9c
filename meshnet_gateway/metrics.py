"""Figures of one Gateway for Prometheus, read from its state at each scrape.

Nothing is counted beside that state, so no gauge can stay behind it. Labels are names that the
Operator gave, or models that a Mesh serves.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from meshnet_gateway.limits.breaker import Closed
from meshnet_gateway.limits.failover import Side
from meshnet_gateway.services import Services

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "meshnet_gateway"


def exposition(services: Services) -> bytes:
    """Write the whole page."""
    registry = CollectorRegistry()
    registry.register(_State(services))
    return generate_latest(registry)


class _State(Collector):
    def __init__(self, services: Services) -> None:
        self._services = services

    def collect(self) -> Iterator[Metric]:
        yield from self._of_models()
        yield from self._of_groups()
        yield from self._of_peers()
        yield from self._of_embedders()
        bodies = _gauge("body_bytes", "Bytes of all requests that are here.")
        bodies.add_metric([], self._services.bodies.held_bytes)
        yield bodies

    def _of_models(self) -> Iterator[Metric]:
        requests = _counter("requests", "Requests sent to an Endpoint.", "model", "endpoint")
        in_flight = _gauge("in_flight", "Requests at an Endpoint now.", "model", "endpoint")
        limit = _gauge("limit", "How many an Endpoint takes at once.", "model", "endpoint")
        gradient = _gauge("gradient", "Below 1 it is slower than it can be.", "model", "endpoint")
        closed = _gauge("breaker_closed", "Whether requests may go there.", "model", "endpoint")
        waiting = _gauge("waiting", "Requests that wait for a place.", "model")
        for served in self._services.registry:
            lines, key = self._services.admission.lines, served.capacity_key
            waiting.add_metric([key], lines.waiting(key))
            for state in served:
                labels = [key, state.endpoint.base_url]
                requests.add_metric(labels, state.requests)
                in_flight.add_metric(labels, state.in_flight)
                limit.add_metric(labels, state.capacity)
                gradient.add_metric(labels, state.limit.facts.gradient)
                closed.add_metric(labels, isinstance(state.breaker.state, Closed))
        yield from (requests, in_flight, limit, gradient, closed, waiting)

    def _of_groups(self) -> Iterator[Metric]:
        in_flight = _gauge("group_in_flight", "Requests in flight in a GPU Group.", "gpu_group")
        budget = _gauge("group_budget", "How many may be; none is no cap.", "gpu_group")
        for name, group in self._services.registry.groups.items():
            in_flight.add_metric([name], group.total)
            if group.budget is not None:
                budget.add_metric([name], group.budget)
        yield from (in_flight, budget)

    def _of_peers(self) -> Iterator[Metric]:
        in_flight = _gauge("peer_in_flight", "Requests that a Peer answers now.", "peer")
        for peer in self._services.peers.listed:
            in_flight.add_metric([peer.id], self._services.peers.in_flight(peer))
        yield in_flight

    def _of_embedders(self) -> Iterator[Metric]:
        failovers = _counter("failover", "Times an embedder went to its fallback.", "model")
        recoveries = _counter("recovery", "Times an embedder came back.", "model")
        fallback = _gauge("fallback_active", "Whether the fallback answers.", "model")
        for name, embedder in self._services.embedders.items():
            facts = embedder.failover.facts
            failovers.add_metric([name], facts.failover_count)
            recoveries.add_metric([name], facts.recovery_count)
            fallback.add_metric([name], facts.active is Side.FALLBACK)
        yield from (failovers, recoveries, fallback)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=labels)


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"{PREFIX}_{name}", text, labels=labels)
