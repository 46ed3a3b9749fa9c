import asyncio

import aiohttp
import pytest

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.bodies import Body, CloseBody, ErrorBody, PingBody
from meshnet_worker.transport import dialling, links, outbox
from meshnet_worker.transport.sockets import hang_up
from tests.common.builders import activations, segment
from tests.worker.transport.ends import (
    BULK,
    INTERACTIVE,
    NOWHERE,
    dialled,
    numbered,
    two_ends,
    wire,
)
from tests.worker.waiting import Changes


@pytest.fixture(autouse=True)
def no_long_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialling, "BACK_OFF_SECONDS", (0.0, 0.01))


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


async def test_who_dialled_each_other_at_once_get_over_the_loss_of_either_link() -> None:
    async with two_ends() as (one, other):
        one.send(other, 1)
        other.send(one, 2)
        await other.hears(1)
        await one.hears(2)
        hang_up(next(iter(one.links._watch)).websocket)
        await one.changes.until(lambda: one.lost or other.lost)
        one.send(other, 3)
        other.send(one, 4)
        await other.hears(1, 3)
        await one.hears(2, 4)


async def test_a_peer_that_cannot_be_reached_is_lost() -> None:
    async with two_ends() as (one, _):
        one.links.send(WorkerId("w9"), NOWHERE, INTERACTIVE, numbered(1))
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
    "half a frame": wire(numbered(1))[:-1],
    "a header of another kind": wire(PingBody(nonce=1)).replace(b"nonce", b"ounce"),
}


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
async def test_junk_closes_its_own_link_and_no_other(junk: bytes) -> None:
    async with two_ends() as (one, other):
        one.send(other, 1)
        async with dialled(other.url, "class=interactive&worker_id=w9") as websocket:
            await websocket.send_bytes(wire(numbered(2)))
            await websocket.send_bytes(junk)
            message = await websocket.receive()
            assert message.type is aiohttp.WSMsgType.CLOSE
            assert message.data == aiohttp.WSCloseCode.PROTOCOL_ERROR
        await other.changes.until(lambda: other.lost == ["w9"])
        one.send(other, 3)
        await other.changes.until(lambda: sorted(other.numbers) == [1, 2, 3])
        assert one.lost == []


async def test_a_stranger_that_names_a_peer_takes_no_session_of_that_peer_with_it() -> None:
    async with two_ends() as (one, other):
        one.send(other, 1)
        await other.hears(1)
        async with dialled(other.url, f"class=interactive&worker_id={one.worker_id}") as websocket:
            await websocket.send_bytes(b"junk")
            assert (await websocket.receive()).type is aiohttp.WSMsgType.CLOSE
        one.send(other, 2)
        await other.hears(1, 2)
        assert (one.lost, other.lost) == ([], [])


async def test_text_is_no_frame() -> None:
    async with two_ends() as (one, _):
        async with dialled(one.url, "class=bulk&worker_id=w9") as websocket:
            await websocket.send_str("hello")
            message = await websocket.receive()
            assert message.data == aiohttp.WSCloseCode.PROTOCOL_ERROR
        await one.changes.until(lambda: one.lost == ["w9"])


async def test_a_message_larger_than_a_frame_may_be_closes_the_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "MAX_MESSAGE_BYTES", 1000)
    async with two_ends() as (one, _):
        async with dialled(one.url, "class=bulk&worker_id=w9") as websocket:
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


async def test_nobody_dials_as_the_worker_itself() -> None:
    async with (
        two_ends() as (one, _),
        aiohttp.ClientSession() as session,
        session.get(f"{one.url}/link?worker_id={one.worker_id}") as response,
    ):
        assert response.status == 400


async def test_a_link_that_cannot_keep_up_is_lost_and_sending_never_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox, "QUEUE_FRAMES", 10)
    async with two_ends() as (one, other):
        one.send(other, *range(11))
        # Later: who sends is in the middle of something.
        assert one.lost == []
        await one.changes.until(lambda: one.lost == ["w2"])
        assert one.reasons == ["The Peer does not keep up. 10 frames wait to be sent."]


async def test_frames_that_were_given_up_are_not_sent_by_a_dial_that_comes_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox, "QUEUE_FRAMES", 2)
    async with two_ends() as (one, other):
        one.send(other, 1, 2, 3)
        await one.changes.until(lambda: one.lost == ["w2"])
        one.send(other, 4)
        await other.hears(4)


async def test_a_peer_that_restarts_is_dialled_until_it_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialling, "BACK_OFF_SECONDS", (0.01,) * 200)
    async with two_ends() as (one, _):
        server = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        one.links.send(WorkerId("w9"), f"http://127.0.0.1:{port}", INTERACTIVE, numbered(1))
        dials = Dials()
        async with await asyncio.start_server(dials.take, "127.0.0.1", port):
            await dials.changes.until(lambda: dials.taken)
        assert one.lost == []


class Dials:
    """A server that counts who comes."""

    def __init__(self) -> None:
        self.taken = 0
        self.changes = Changes()

    def take(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.taken += 1
        writer.close()
        self.changes.tell()


async def test_a_fault_of_the_listener_costs_one_link_and_not_the_worker() -> None:
    def fail(_sender: WorkerId, body: Body) -> None:
        if body == numbered(13):
            raise RuntimeError("unlucky")

    async with two_ends() as (one, other):
        other.send(one, 0)
        await one.hears(0)
        object.__setattr__(one.links._listener, "on_body", fail)
        other.send(one, 13)
        await one.changes.until(lambda: one.lost == ["w2"])
        assert one.reasons == ["unlucky"]
        await other.changes.until(lambda: other.lost == ["w1"])
        one.send(other, 1)
        await other.hears(1)


async def test_a_frame_that_cannot_be_laid_out_costs_no_link() -> None:
    body = ErrorBody(session_id="s1", code="c", message="m" * 70_000, worker_id="w1")
    async with two_ends() as (one, other):
        one.links.send(other.worker_id, other.url, INTERACTIVE, body)
        one.send(other, 1)
        await other.hears(1)


async def test_links_that_are_closed_dial_nobody() -> None:
    async with two_ends() as (one, other):
        await one.links.close()
        one.send(other, 1)
        assert one.links._links == {}


async def test_activations_that_a_newer_epoch_or_a_close_outdates_leave_no_more() -> None:
    async with two_ends() as (one, _):
        for newer in (activations(segment(epoch=(2, 0))), CloseBody(session_id="s1", epoch=(1, 0))):
            one.links.send(WorkerId("w8"), NOWHERE, BULK, activations(segment()))
            one.links.send(WorkerId("w8"), NOWHERE, BULK, activations(segment(session_id="s2")))
            assert len(one.links._links[WorkerId("w8"), BULK].outbox) == 2
            one.links.send(WorkerId("w9"), NOWHERE, INTERACTIVE, newer)
            assert len(one.links._links[WorkerId("w8"), BULK].outbox) == 1
            await one.changes.until(lambda: not one.links._links)
