import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest

from meshnet_common.edge.http import new_application
from meshnet_common.edge.serving import listening
from meshnet_common.ids import WorkerId
from meshnet_common.protocol.bodies import Body, PingBody, to_frame
from meshnet_common.protocol.frames import encode_frame
from meshnet_worker.transport import links
from meshnet_worker.transport.links import LinkClass, LinkListener, Links, start_task
from tests.common.builders import activations, segment
from tests.worker.waiting import SECONDS, Changes, ending_tasks

NOWHERE = "http://127.0.0.1:1"
INTERACTIVE, BULK = LinkClass.INTERACTIVE, LinkClass.BULK


class End:
    """One Worker's links behind a real server, and all that it heard."""

    def __init__(self, worker_id: str, tasks: asyncio.TaskGroup) -> None:
        self.worker_id = WorkerId(worker_id)
        self.url = ""
        self.heard: list[tuple[str, Body]] = []
        self.lost: list[str] = []
        self.changes = Changes()
        self.links = Links(self.worker_id, LinkListener(self._on_body, self._on_lost), tasks)

    def send(self, other: "End", *nonces: int, link_class: LinkClass = INTERACTIVE) -> None:
        for nonce in nonces:
            self.links.send(other.worker_id, other.url, link_class, PingBody(nonce=nonce))

    async def hears(self, *nonces: int) -> None:
        await self.changes.until(lambda: len(self.heard) >= len(nonces))
        assert self.nonces == list(nonces)

    @property
    def nonces(self) -> list[int]:
        return [body.nonce for _, body in self.heard if isinstance(body, PingBody)]

    def _on_body(self, sender: WorkerId, body: Body) -> None:
        self.heard.append((sender, body))
        self.changes.tell()

    def _on_lost(self, worker_id: WorkerId) -> None:
        self.lost.append(worker_id)
        self.changes.tell()


@asynccontextmanager
async def served(end: End) -> AsyncIterator[None]:
    app = new_application()
    app.router.add_get("/link", end.links.accept)
    async with listening(app, "127.0.0.1", 0) as end.url:
        yield


@asynccontextmanager
async def two_ends() -> AsyncIterator[tuple[End, End]]:
    async with AsyncExitStack() as servers:
        ends = []
        try:
            async with ending_tasks() as tasks:
                ends = [End("w1", tasks), End("w2", tasks)]
                for end in ends:
                    await servers.enter_async_context(served(end))
                yield ends[0], ends[1]
        finally:
            for end in ends:
                await end.links.close()


@asynccontextmanager
async def dialled(end: End, query: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    async with (
        asyncio.timeout(SECONDS),
        aiohttp.ClientSession() as session,
        session.ws_connect(f"{end.url}/link?{query}") as websocket,
    ):
        yield websocket


async def test_frames_arrive_in_order_and_name_their_sender() -> None:
    async with two_ends() as (one, other):
        one.send(other, *range(200))
        await other.hears(*range(200))
        assert {sender for sender, _ in other.heard} == {"w1"}


async def test_a_link_that_either_side_opened_serves_both() -> None:
    async with two_ends() as (one, other):
        one.send(other, 1)
        await other.hears(1)
        one.url = NOWHERE  # an answer must not need to dial
        other.send(one, 2)
        await one.hears(2)
        other.links.answer(one.worker_id, PingBody(nonce=3))
        await one.hears(2, 3)


async def test_both_sides_may_open_at_once() -> None:
    async with two_ends() as (one, other):
        one.send(other, 1, 2)
        other.send(one, 3, 4)
        await other.hears(1, 2)
        await one.hears(3, 4)
        assert (one.lost, other.lost) == ([], [])


async def test_large_frames_travel_on_the_bulk_link_beside_small_ones() -> None:
    async with two_ends() as (one, other):
        chunk = activations(segment(tokens=128), hidden_size=4096)
        one.links.send(other.worker_id, other.url, BULK, chunk)
        one.send(other, 1)
        await other.changes.until(lambda: len(other.heard) == 2)
        assert ("w1", chunk) in other.heard
        assert set(other.links._links) == {("w1", BULK), ("w1", INTERACTIVE)}


async def test_an_answer_to_nobody_is_passed_over() -> None:
    async with two_ends() as (one, _):
        one.links.answer(WorkerId("w9"), PingBody(nonce=1))


async def test_a_peer_that_cannot_be_reached_is_lost() -> None:
    async with two_ends() as (one, _):
        one.links.send(WorkerId("w9"), NOWHERE, INTERACTIVE, PingBody(nonce=1))
        await one.changes.until(lambda: one.lost == ["w9"])


async def test_a_peer_that_is_no_worker_is_lost() -> None:
    async with two_ends() as (one, other):
        other.url += "/elsewhere"
        one.send(other, 1)
        await one.changes.until(lambda: one.lost == ["w2"])


async def test_a_lost_peer_may_be_dialled_again() -> None:
    async with two_ends() as (one, other):
        url, other.url = other.url, NOWHERE
        one.send(other, 1)
        await one.changes.until(lambda: one.lost == ["w2"])
        other.url = url
        one.send(other, 2)
        await other.hears(2)


async def test_a_peer_that_hangs_up_is_lost_on_both_sides() -> None:
    async with two_ends() as (one, other):
        one.send(other, 1)
        await other.hears(1)
        await one.links.close()
        await other.changes.until(lambda: other.lost == ["w1"])
        await one.changes.until(lambda: one.lost == ["w2"])


JUNK = {
    "no frame": b"junk",
    "an empty message": b"",
    "half a frame": encode_frame(to_frame(PingBody(nonce=1)))[:-1],
    "a header of another kind": encode_frame(to_frame(PingBody(nonce=1))._replace(header=b"\x80")),
}


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
async def test_junk_closes_its_own_link_and_no_other(junk: bytes) -> None:
    async with two_ends() as (one, other):
        one.send(other, 1)
        async with dialled(other, "class=interactive&worker_id=w9") as websocket:
            await websocket.send_bytes(encode_frame(to_frame(PingBody(nonce=2))))
            await websocket.send_bytes(junk)
            message = await websocket.receive()
            assert message.type is aiohttp.WSMsgType.CLOSE
            assert message.data == aiohttp.WSCloseCode.PROTOCOL_ERROR
        await other.changes.until(lambda: other.lost == ["w9"])
        one.send(other, 3)
        await other.changes.until(lambda: sorted(other.nonces) == [1, 2, 3])
        assert one.lost == []


async def test_a_stranger_that_names_a_peer_takes_no_session_of_that_peer_with_it() -> None:
    async with two_ends() as (one, other):
        one.send(other, 1)
        await other.hears(1)
        async with dialled(other, f"class=interactive&worker_id={one.worker_id}") as websocket:
            await websocket.send_bytes(b"junk")
            assert (await websocket.receive()).type is aiohttp.WSMsgType.CLOSE
        one.send(other, 2)
        await other.hears(1, 2)
        assert (one.lost, other.lost) == ([], [])


async def test_text_is_no_frame() -> None:
    async with two_ends() as (one, _):
        async with dialled(one, "class=bulk&worker_id=w9") as websocket:
            await websocket.send_str("hello")
            message = await websocket.receive()
            assert message.data == aiohttp.WSCloseCode.PROTOCOL_ERROR
        await one.changes.until(lambda: one.lost == ["w9"])


async def test_a_message_larger_than_a_frame_may_be_closes_the_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "MAX_MESSAGE_BYTES", 1000)
    async with two_ends() as (one, _):
        async with dialled(one, "class=bulk&worker_id=w9") as websocket:
            await websocket.send_bytes(bytes(2000))
            message = await websocket.receive()
            assert message.data == aiohttp.WSCloseCode.MESSAGE_TOO_BIG
        await one.changes.until(lambda: one.lost == ["w9"])
        assert one.heard == []


@pytest.mark.parametrize("query", ["", "class=interactive", "class=express&worker_id=w9"])
async def test_a_link_that_is_dialled_wrongly_is_refused(query: str) -> None:
    async with (
        two_ends() as (one, _),
        aiohttp.ClientSession() as session,
        session.get(f"{one.url}/link?{query}") as response,
    ):
        assert response.status == 400
        assert "worker_id" in (await response.json())["error"]["message"]


async def test_a_link_that_cannot_keep_up_is_lost_and_sending_never_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "QUEUE_FRAMES", 10)
    async with two_ends() as (one, other):
        one.send(other, *range(11))
        assert one.lost == ["w2"]


async def test_a_worker_that_is_stopping_starts_nothing() -> None:
    async def dial() -> None:
        raise AssertionError

    async with ending_tasks() as tasks:
        pass
    start_task(tasks, dial())
