"""What an Operator sees of a Gateway: everything that is in flight, in line, or in trouble."""

from typing import Any, assert_never

import msgspec
from aiohttp import web

from meshnet_common.edge.http import json_response
from meshnet_gateway.config.settings import Model
from meshnet_gateway.limits.breaker import BreakerState, Closed, HalfOpen, Open
from meshnet_gateway.limits.budgets import GroupBudget
from meshnet_gateway.limits.failover import Side
from meshnet_gateway.metrics import CONTENT_TYPE, exposition
from meshnet_gateway.services import Services
from meshnet_gateway.serving.advice import advise
from meshnet_gateway.serving.endpoint_state import EndpointState
from meshnet_gateway.serving.served_model import ServedModel


class StatusHandlers:
    """Handlers that only look."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[web.AbstractRouteDef]:
        return [
            web.get("/v1/gateway/status", self.status),
            web.get("/v1/gateway/embeddings/status", self.embeddings),
            web.get("/metrics", self.metrics),
        ]

    async def status(self, _request: web.Request) -> web.Response:
        """Show models, GPU Groups and Peers."""
        services, now = self._services, self._services.steady.now()
        shown = {
            "mesh_id": services.settings.mesh_id,
            "waiting": services.admission.lines.total,
            "body_bytes": services.bodies.held_bytes,
            "models": [self._model(served) for served in services.registry],
            "groups": [self._group(name, it) for name, it in services.registry.groups.items()],
            "peers": [
                {
                    "id": peer.id,
                    "base_url": peer.base_url,
                    "in_flight": services.peers.in_flight(peer),
                    "has_failed": services.peers.is_cooling(peer, now),
                }
                for peer in services.peers.listed
            ],
        }
        return json_response(msgspec.json.encode(shown))

    async def embeddings(self, _request: web.Request) -> web.Response:
        """Show which side of each embedding model answers; at the top that of the first."""
        models = self._services.settings.models
        shown = [self._embedder(m) for m in models if m.kind == "embedding" and m.endpoints]
        first = shown[0] if shown else _NO_EMBEDDER
        return json_response(msgspec.json.encode({**first, "models": shown}))

    async def metrics(self, _request: web.Request) -> web.Response:
        """Expose the same as figures for Prometheus."""
        page = exposition(self._services)
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE})

    def _group(self, name: str, group: GroupBudget) -> dict[str, Any]:
        states = [state for served in self._services.registry for state in served]
        waiting = sum(map(self._services.admission.lines.waiting, group.members))
        return {
            "gpu_group": name,
            "budget": group.budget,
            "in_flight": group.total,
            "committed": group.committed,
            "models": {model: group.in_flight(model) for model in group.members},
            "advice": advise(group, states, waiting),
        }

    def _model(self, served: ServedModel) -> dict[str, Any]:
        return {
            "id": served.model.id,
            "capacity_key": served.capacity_key,
            "role": served.role,
            "in_flight": served.in_flight,
            "waiting": self._services.admission.lines.waiting(served.capacity_key),
            "capacity": served.capacity,
            "ceiling": served.model.ceiling,
            "endpoints": [_endpoint(state) for state in served],
        }

    def _embedder(self, model: Model) -> dict[str, Any]:
        name = model.id
        sides = self._services.sides_of(name)
        if sides is None:
            return {**_NO_EMBEDDER, "model": name, "active_endpoint": model.endpoints[0].base_url}
        facts = sides.embedder.failover.facts
        is_fallback = facts.active is Side.FALLBACK
        return {
            "model": name,
            "active_endpoint": _first_url(sides.fallback if is_fallback else sides.primary),
            "is_fallback": is_fallback,
            "fallback_configured": True,
            "breaker": _breaker_word(facts.breaker),
            "failover_count": facts.failover_count,
            "recovery_count": facts.recovery_count,
            "dimensions": facts.dimensions,
        }


_NO_EMBEDDER: dict[str, Any] = {
    "model": None,
    "active_endpoint": None,
    "is_fallback": False,
    "fallback_configured": False,
    "breaker": "closed",
    "failover_count": 0,
    "recovery_count": 0,
    "dimensions": None,
}


def _first_url(served: ServedModel) -> str | None:
    return next((state.endpoint.base_url for state in served), None)


def _endpoint(state: EndpointState) -> dict[str, Any]:
    facts = state.limit.facts
    return {
        "base_url": state.endpoint.base_url,
        "gpu_group": state.endpoint.gpu_group,
        "requests": state.requests,
        "in_flight": state.in_flight,
        "capacity": state.capacity,
        "limit": msgspec.to_builtins(facts),
        "breaker": _breaker_word(state.breaker.state),
        "listing": state.listing.value,
        "load": msgspec.to_builtins(state.load),
    }


def _breaker_word(state: BreakerState) -> str:
    match state:
        case Closed():
            return "closed"
        case Open():
            return "open"
        case HalfOpen():
            return "half_open"
        case _:
            assert_never(state)
