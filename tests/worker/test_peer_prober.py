import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from meshnet_common.edge.clock import loop_time
from meshnet_common.edge.http import new_application
from meshnet_common.edge.serving import listening
from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import PeerAddress
from meshnet_worker import peer_prober
from meshnet_worker.peer_prober import MOST_BYTES, PeerProber, PeerSilentError, round_trip_seconds
from meshnet_worker.peer_trips import PeerTrips
from tests.worker.waiting import SECONDS, Changes, ending_tasks

NOWHERE = "http://127.0.0.1:1"
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def alive(_request: web.Request) -> web.StreamResponse:
    return web.json_response({"status": "alive"})


class Peer:
    """A server that answers as it is told to, and knows who has asked."""

    def __init__(self, answer: Answer) -> None:
        self.url = ""
        self.connections: list[object] = []
        self.changes = Changes()
        self._answer = answer

    async def healthz(self, request: web.Request) -> web.StreamResponse:
        self.connections.append(request.transport)
        self.changes.tell()
        return await self._answer(request)


@asynccontextmanager
async def peer(answer: Answer = alive) -> AsyncIterator[Peer]:
    one = Peer(answer)
    app = new_application()
    app.router.add_get("/healthz", one.healthz)
    async with listening(app, "127.0.0.1", 0) as one.url:
        yield one


async def test_the_second_question_on_one_connection_counts() -> None:
    async def slow_at_first(_request: web.Request) -> web.StreamResponse:
        if len(one.connections) == 1:
            await asyncio.sleep(0.5)
        return web.Response(text="alive")

    async with peer(slow_at_first) as one:
        assert 0 < await round_trip_seconds(one.url) < 0.4
        assert len(one.connections) == 2
        assert one.connections[0] is one.connections[1]


async def test_a_peer_that_stalls_is_measured_too() -> None:
    async def stalled(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=503)

    async with peer(stalled) as one:
        assert await round_trip_seconds(one.url) > 0


async def test_what_is_no_worker_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    async def endless(_request: web.Request) -> web.StreamResponse:
        return web.Response(text="x" * (MOST_BYTES + 1))

    async def hangs(_request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(SECONDS)
        return web.Response()

    with pytest.raises(PeerSilentError, match="ClientConnectorError"):
        await round_trip_seconds(NOWHERE)
    async with peer(endless) as one:
        with pytest.raises(PeerSilentError, match="too long"):
            await round_trip_seconds(one.url)
    monkeypatch.setattr(peer_prober, "PROBE_SECONDS", 0.05)
    async with peer(hangs) as one:
        with pytest.raises(PeerSilentError, match="did not answer"):
            await round_trip_seconds(one.url)


async def test_nobody_is_sent_elsewhere() -> None:
    async with peer() as target:

        async def elsewhere(_request: web.Request) -> web.StreamResponse:
            raise web.HTTPFound(f"{target.url}/healthz")

        async with peer(elsewhere) as one:
            assert await round_trip_seconds(one.url) > 0
        assert target.connections == []


async def test_peers_are_measured_one_after_the_other() -> None:
    trips = PeerTrips(WorkerId("own"))
    prober = PeerProber(trips)
    async with asyncio.timeout(SECONDS), peer() as one, peer() as two, ending_tasks() as tasks:
        tasks.create_task(prober.run())
        prober.ask(
            [
                PeerAddress(worker_id="a", url=one.url),
                PeerAddress(worker_id="b", url=NOWHERE),
                PeerAddress(worker_id="c", url=two.url),
            ]
        )
        await two.changes.until(lambda: len(two.connections) == 2)
        prober.ask([PeerAddress(worker_id="d", url=two.url)])
        await two.changes.until(lambda: len(two.connections) == 4)
        told = trips.told({}, loop_time())
        assert {"a", "c"} <= {each.worker_id for each in told} <= {"a", "c", "d"}
