"""A Gateway in this process, over real sockets, quick to try again and to give up."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from meshnet_common.edge.beside import beside
from meshnet_common.edge.clock import Clock, SteadyClock
from meshnet_common.edge.forwarding import upstream_session
from meshnet_common.edge.serving import listening
from meshnet_gateway.app import gateway_application
from meshnet_gateway.config.settings import Endpoint, Model, Settings
from meshnet_gateway.services import Services
from tests.common.edge.upstreams import LOOPBACK

GROUP = "gpu"


@dataclass(frozen=True)
class Running:
    """It and where it listens."""

    services: Services
    url: str

    @property
    def in_flight(self) -> dict[str, int]:
        """Every gauge that is not zero."""
        registry, admission = self.services.registry, self.services.admission
        gauges = {served.capacity_key: served.in_flight for served in registry}
        gauges |= {f"group {name}": group.total for name, group in registry.groups.items()}
        gauges["waiting"] = admission.lines.total
        gauges["body_bytes"] = self.services.bodies.held_bytes
        peers = self.services.peers
        gauges |= {f"peer {peer.id}": peers.in_flight(peer) for peer in peers.listed}
        return {name: count for name, count in gauges.items() if count}


def settings(**fields: Any) -> Settings:
    quick: dict[str, Any] = {
        "mesh_id": "here",
        "meshes": (),
        "hold_seconds": 0.3,
        "ack_after_ms": 0,
        "connect_backoff_ms": 10,
    }
    return Settings(**{**quick, **fields})


def endpoint(base_url: str, **fields: Any) -> Endpoint:
    return Endpoint(base_url=base_url, **{"gpu_group": GROUP, **fields})


def model(*endpoints: Endpoint, **fields: Any) -> Model:
    return Model(**{"id": "smol", "endpoints": endpoints, "hold_seconds": 5.0, **fields})


@asynccontextmanager
async def running(
    known: Settings, clock: Clock | None = None, *, watched: bool = True
) -> AsyncIterator[Running]:
    """Serve by these settings; `watched` Endpoints have been looked at once before."""
    async with upstream_session() as session:
        services = Services.of(session, known, clock or SteadyClock(), draw=lambda: 0.5)
        if watched:
            await services.watch.look_round()
        async with (
            beside(services.watch.run()),
            listening(gateway_application(services), LOOPBACK, 0) as url,
        ):
            yield Running(services, url)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so, for ten seconds at most."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.001)


async def show(url: str, path: str) -> Any:
    """Get what an endpoint shows."""
    async with aiohttp.ClientSession() as session, session.get(url + path) as response:
        assert response.status == 200
        return await response.json()
