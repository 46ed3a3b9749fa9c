"""What `POST /forward` may not do: it touches no Session that runs on its Route."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from meshnet_common.protocol.bodies import Body, CloseBody, OpenBody
from meshnet_worker.transport.forward import CONTENT_TYPE
from tests.common.builders import hop, ticket, token_of
from tests.worker.builders import RecordingRoom
from tests.worker.running import RunningWorker, running_workers
from tests.worker.transport.ends import wire

CLAIMS = ticket(hop("w9", 0, 2), hop("w0", 2, 4))
FAR = 10**9


class Caller:
    """Whoever posts to a Worker, which also is a Hop of a Route."""

    def __init__(self, worker: RunningWorker, session: aiohttp.ClientSession) -> None:
        self.worker = worker
        self._session = session

    async def post(self, body: Body) -> int:
        headers = {"Content-Type": CONTENT_TYPE}
        url = f"{self.worker.url}/forward"
        async with self._session.post(url, data=wire(body), headers=headers) as response:
            return response.status

    async def open(self, rollback: int = 0) -> int:
        return await self.post(opening(rollback))

    def opens_on_route(self) -> None:
        self.worker.admission.open(CLAIMS, opening())

    @property
    def runs_on_route(self) -> bool:
        session = self.worker.recording.sessions.find("s1")
        return session is not None and session.outlet is None and session.opening == (1, 0)


def opening(rollback: int = 0) -> OpenBody:
    return OpenBody(ticket=token_of(CLAIMS), max_positions=8, rollback=rollback)


def close(incarnation: int = 1) -> CloseBody:
    return CloseBody(session_id="s1", epoch=(incarnation, 0))


@asynccontextmanager
async def caller() -> AsyncIterator[Caller]:
    async with running_workers(RecordingRoom("w0")) as (worker,), aiohttp.ClientSession() as one:
        yield Caller(worker, one)


@pytest.mark.parametrize("rollback", [0, 1, FAR])
async def test_a_forwarded_opening_leaves_a_session_on_its_route_alone(rollback: int) -> None:
    async with caller() as one:
        one.opens_on_route()
        assert await one.open(rollback) == 403
        assert one.runs_on_route


@pytest.mark.parametrize("incarnation", [1, FAR])
async def test_a_forwarded_close_leaves_a_session_on_its_route_alone(incarnation: int) -> None:
    async with caller() as one:
        one.opens_on_route()
        assert await one.post(close(incarnation)) == 403
        assert one.runs_on_route


async def test_a_forwarded_close_of_no_session_is_a_404_and_leaves_nothing() -> None:
    async with caller() as one:
        assert await one.post(close(FAR)) == 404
        assert not one.worker.recording.sessions.is_buried("s1")
        one.opens_on_route()
        assert one.runs_on_route


async def test_a_forwarded_opening_rolls_back_nothing_that_is_not_here() -> None:
    async with caller() as one:
        assert await one.open(rollback=1) == 403
        one.opens_on_route()
        assert one.runs_on_route


async def test_a_forwarded_session_is_rolled_back_once_by_once() -> None:
    async with caller() as one:
        assert [await one.open(rollback) for rollback in (0, 1, 2, FAR)] == [200, 200, 200, 403]


async def test_a_forwarded_close_fences_no_later_opening_of_its_session() -> None:
    async with caller() as one:
        assert await one.open() == 200
        assert await one.post(close(FAR)) == 200
        assert one.worker.is_as_before
        assert not one.worker.recording.sessions.is_buried("s1", (1, 1))


async def test_a_forwarded_close_that_is_stale_closes_nothing() -> None:
    async with caller() as one:
        assert [await one.open(rollback) for rollback in (0, 1)] == [200, 200]
        assert await one.post(close()) == 200
        assert one.worker.open_sessions == 1
