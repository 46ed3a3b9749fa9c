"""Whatever bytes a stranger sends to a Worker, it refuses them and goes on serving."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from io import BytesIO

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshnet_common.protocol.bodies import (
    OpenBody,
    OpenedBody,
    PingBody,
    PongBody,
    from_frame,
)
from meshnet_common.protocol.frames import decode_frame
from meshnet_worker.transport.forward import CONTENT_TYPE
from meshnet_worker.transport.links import MAX_MESSAGE_BYTES
from tests.common.builders import hop, ticket, token_of
from tests.common.protocol.junk import JUNK, changed, greedy_frames
from tests.worker.builders import GREEDY, RecordingRoom
from tests.worker.running import PlayedEngine, RunningWorker, running_workers
from tests.worker.transport.ends import dialled, message, raw_peer, wire
from tests.worker.waiting import SECONDS

MIB = 1 << 20
SOME = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
OPENING = wire(
    OpenBody(ticket=token_of(ticket(hop("w0", 0, 4))), max_positions=20, sampling=GREEDY)
)
MESSAGES = st.one_of(
    JUNK,
    st.sampled_from([OPENING]).flatmap(changed),
    st.text(max_size=20),
    st.just(bytes(5 * MIB)),
)
STREAMS = st.one_of(
    st.binary(max_size=200),
    st.builds(message, st.integers(0, 2**64 - 1), st.binary(max_size=64)),
    JUNK.map(lambda junk: message(len(junk), junk)),
    JUNK.map(lambda junk: message(len(junk), junk[:-1])),
)


class Stranger:
    """Whoever talks to a Worker without leave."""

    def __init__(self, worker: RunningWorker, session: aiohttp.ClientSession) -> None:
        self.url = worker.url
        self._session = session

    async def post(self, data: bytes | str, content_type: str = CONTENT_TYPE) -> int:
        raw = data if isinstance(data, bytes) else data.encode()
        headers = {"Content-Type": content_type}
        url = f"{self.url}/forward"
        async with (
            asyncio.timeout(SECONDS),
            self._session.post(url, data=BytesIO(raw), headers=headers) as response,
        ):
            body = await response.read()
        assert response.status == 200 or b'"error"' in body, body
        return response.status

    async def open(self) -> None:
        """Check that the Worker serves: a Session opens and says so."""
        body = OpenBody(
            ticket=token_of(ticket(hop("w0", 0, 4), session_id="after")),
            max_positions=1,
            sampling=GREEDY,
        )
        headers = {"Content-Type": CONTENT_TYPE}
        url = f"{self.url}/forward"
        async with self._session.post(url, data=wire(body), headers=headers) as response:
            opened = from_frame(decode_frame(await response.read()))
        assert isinstance(opened, OpenedBody)

    async def ping(self) -> None:
        """Check that the Worker's links live."""
        async with dialled(self.url, "worker_id=honest") as websocket:
            await websocket.send_bytes(wire(PingBody(nonce=1)))
            body = from_frame(decode_frame(await websocket.receive_bytes()))
        assert isinstance(body, PongBody)


@asynccontextmanager
async def stranger() -> AsyncIterator[Stranger]:
    async with (
        running_workers(RecordingRoom("w0")) as (worker,),
        aiohttp.ClientSession() as session,
    ):
        PlayedEngine(worker)
        yield Stranger(worker, session)


@SOME
@given(st.lists(MESSAGES, min_size=1, max_size=4))
async def test_junk_that_is_posted_is_refused(junk: list[bytes | str]) -> None:
    async with stranger() as one:
        for data in junk:
            assert await one.post(data) < 500
        await one.open()


@SOME
@given(st.lists(MESSAGES, min_size=1, max_size=4), st.sampled_from(["interactive", "bulk"]))
async def test_junk_on_a_link_ends_that_link_only(junk: list[bytes | str], link_class: str) -> None:
    async with stranger() as one:
        for data in junk:
            async with dialled(one.url, f"class={link_class}&worker_id=w9") as websocket:
                if isinstance(data, str):
                    await websocket.send_str(data)
                else:
                    await websocket.send_bytes(data)
        await one.ping()
        await one.open()


@SOME
@given(st.lists(STREAMS, min_size=1, max_size=4))
async def test_junk_below_a_link_ends_that_link_only(junk: list[bytes]) -> None:
    async with stranger() as one:
        for data in junk:
            async with raw_peer(one.url, "class=bulk&worker_id=w9") as peer:
                with suppress(ConnectionError):
                    await peer.write(data)
        await one.ping()


@SOME
@given(st.text(max_size=40), st.text(max_size=40))
async def test_a_link_with_junk_for_an_address_is_refused(link_class: str, worker_id: str) -> None:
    query = {"class": link_class, "worker_id": worker_id}
    async with stranger() as one:
        async with one._session.get(f"{one.url}/link", params=query) as response:
            assert response.status == 400
        await one.ping()


async def test_greedy_frames_cost_a_worker_no_memory() -> None:
    frames = greedy_frames()
    async with stranger() as one:
        assert await one.post(OPENING) == 200
        await one.ping()
        tracemalloc.start()
        try:
            for data in frames.values():
                assert await one.post(data) == 400
                async with dialled(one.url, "class=bulk&worker_id=w9") as websocket:
                    await websocket.send_bytes(data)
                    assert (await websocket.receive()).type is aiohttp.WSMsgType.CLOSE
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 20 * max(map(len, frames.values())) + MIB
        await one.ping()


@pytest.mark.parametrize("declared", [MAX_MESSAGE_BYTES + 1, 1 << 40, (1 << 63) - 1, 1 << 63])
async def test_a_message_that_says_it_is_huge_costs_a_worker_no_memory(declared: int) -> None:
    async with stranger() as one:
        await one.ping()
        tracemalloc.start()
        try:
            async with raw_peer(one.url, "class=bulk&worker_id=w9") as peer:
                await peer.write(message(declared, bytes(1000)))
                await one.ping()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 2 * MIB
