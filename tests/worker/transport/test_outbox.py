import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from meshnet_common.ids import WorkerId
from meshnet_worker.transport import outbox as outboxes
from meshnet_worker.transport.outbox import MOST_SIGNS, Outbox, OutboxFullError, Sending
from meshnet_worker.transport.underway import Part
from tests.common.builders import activations, segment
from tests.worker.transport.ends import (
    BULK,
    EAGER,
    INTERACTIVE,
    NOWHERE,
    dialled,
    message,
    numbered,
    raw_peer,
    two_ends,
    wire,
)
from tests.worker.waiting import Changes, ending_tasks


class Wire:
    """Writes down what several sockets are given, and can make them take nothing."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.changes = Changes()
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def send(self, data: bytes) -> None:
        self.sent.append(data)
        self.changes.tell()
        await self.is_open.wait()

    async def carries(self, *frames: bytes) -> None:
        await self.changes.until(lambda: len(self.sent) >= len(frames))
        assert self.sent == list(frames)


def filled(*frames: bytes) -> Outbox:
    outbox = Outbox()
    for frame in frames:
        outbox.put(frame)
    return outbox


@asynccontextmanager
async def senders() -> AsyncIterator[tuple[Sending, asyncio.TaskGroup]]:
    async with ending_tasks() as tasks:
        yield Sending(), tasks


async def test_frames_leave_in_their_order() -> None:
    wire = Wire()
    async with senders() as (sending, tasks):
        outbox = filled(b"1", b"2")
        tasks.create_task(sending.interactive(outbox, wire.send))
        await wire.carries(b"1", b"2")
        outbox.put(b"3")
        await wire.carries(b"1", b"2", b"3")


async def test_a_sign_of_life_overtakes_what_waits() -> None:
    outbox = filled(b"1", b"2")
    outbox.put_sign(b"ping")
    assert [outbox.pop() for _ in range(3)] == [b"ping", b"1", b"2"]


async def test_bulk_frames_of_several_sessions_leave_by_turns() -> None:
    wire, outbox = Wire(), Outbox()
    for name in ("s1", "s1", "s1", "s2", "s2"):
        outbox.put(name.encode(), (Part(name, (1, 0)),))
    async with senders() as (sending, tasks):
        tasks.create_task(sending.bulk(outbox, wire.send))
        await wire.carries(b"s1", b"s2", b"s1", b"s2", b"s1")


async def test_activations_of_a_lower_epoch_are_purged() -> None:
    outbox = Outbox()
    outbox.put(b"old", (Part("s1", (1, 0)), Part("s1", (1, 1))))
    outbox.put(b"of another", (Part("s2", (1, 0)),))
    outbox.put(b"of both", (Part("s1", (1, 0)), Part("s2", (1, 0))))
    outbox.put(b"new", (Part("s1", (2, 0)),))
    outbox.put(b"of none")
    outbox.purge(Part("s1", (2, 0)))
    left = [outbox.pop() for _ in range(len(outbox))]
    assert left == [b"of another", b"of both", b"new", b"of none"]
    assert outbox._frame_bytes == 0


async def test_who_sends_waits_on_when_all_is_purged() -> None:
    wire, waiting, outbox = Wire(), Outbox(), Outbox()
    waiting.put(b"step")
    async with senders() as (sending, tasks):
        sending._interactive.add(waiting)
        tasks.create_task(sending.bulk(outbox, wire.send))
        outbox.put(b"old", (Part("s1", (1, 0)),))
        await asyncio.sleep(0)
        outbox.purge(Part("s1", (2, 0)))
        sending._interactive.discard(waiting)
        sending._changed.set()
        await asyncio.sleep(0)
        outbox.put(b"new", (Part("s1", (2, 0)),))
        await wire.carries(b"new")


async def test_activations_are_on_their_way_until_a_ping_behind_them_is_answered() -> None:
    outbox = Outbox()
    outbox.put(b"1", (Part("s1", (1, 0)),), 5.0)
    outbox.put(b"2", (Part("s2", (1, 0)),), 6.0)
    assert outbox.pop() == b"1"
    assert list(outbox.sessions(5.0)) == ["s1"]
    assert list(outbox.sessions(6.0)) == ["s1", "s2"]
    outbox.put_sign(b"ping", asks=3)
    assert outbox.pop_by_turns() == b"ping"
    outbox.answer(3)
    assert list(outbox.sessions(6.0)) == ["s2"]


async def test_signs_of_life_that_nobody_reads_are_bounded() -> None:
    outbox = Outbox()
    for _ in range(1000):
        outbox.put_sign(b"pong")
    assert len(outbox) == MOST_SIGNS


async def test_frames_that_nobody_reads_are_bounded_by_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outboxes, "QUEUE_FRAMES", 2)
    outbox = filled(b"1", b"2")
    with pytest.raises(OutboxFullError):
        outbox.put(b"3")
    outbox.pop()
    outbox.put(b"3")


async def test_frames_that_nobody_reads_are_bounded_by_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outboxes, "QUEUE_BYTES", 10)
    outbox = filled(bytes(8))
    with pytest.raises(OutboxFullError):
        outbox.put(bytes(3))
    outbox.pop()
    outbox.put(bytes(10))


async def test_a_decode_step_waits_for_no_more_than_the_chunk_before_it() -> None:
    wire = Wire()
    async with senders() as (sending, tasks):
        interactive = Outbox()
        tasks.create_task(sending.interactive(interactive, wire.send))
        tasks.create_task(sending.bulk(filled(*[b"chunk"] * 50), wire.send))
        # As a token comes in between two chunks.
        await wire.changes.until(lambda: wire.sent)
        interactive.put(b"step")
        await wire.changes.until(lambda: len(wire.sent) == 51)
    assert wire.sent.index(b"step") <= 2


async def test_decode_steps_that_wait_all_leave_before_the_next_chunk() -> None:
    wire = Wire()
    async with senders() as (sending, tasks):
        chunks, links = Outbox(), [Outbox() for _ in range(3)]
        for outbox in links:
            tasks.create_task(sending.interactive(outbox, wire.send))
        tasks.create_task(sending.bulk(chunks, wire.send))
        await asyncio.sleep(0)
        for outbox in (chunks, *links):
            outbox.put(b"chunk" if outbox is chunks else b"step")
            outbox.put(b"chunk" if outbox is chunks else b"step")
        await wire.changes.until(lambda: len(wire.sent) == 8)
    assert wire.sent == [*[b"step"] * 6, b"chunk", b"chunk"]


async def test_a_bulk_link_that_takes_nothing_holds_up_no_other() -> None:
    stuck, wire = Wire(), Wire()
    stuck.is_open.clear()
    async with senders() as (sending, tasks):
        tasks.create_task(sending.bulk(filled(b"1", b"2"), stuck.send))
        tasks.create_task(sending.bulk(filled(b"3", b"4"), wire.send))
        tasks.create_task(sending.interactive(filled(b"step"), wire.send))
        await wire.changes.until(lambda: sorted(wire.sent) == [b"3", b"4", b"step"])
    assert stuck.sent == [b"1"]


async def test_an_interactive_link_that_takes_nothing_does_not_hold_up_chunks_to_others() -> None:
    stuck, wire = Wire(), Wire()
    stuck.is_open.clear()
    async with senders() as (sending, tasks):
        frozen = filled(b"1", b"2")
        tasks.create_task(sending.interactive(frozen, stuck.send))
        tasks.create_task(sending.bulk(filled(b"chunk"), wire.send))
        await wire.carries(b"chunk")
        assert len(frozen) == 1
        stuck.is_open.set()
        await stuck.carries(b"1", b"2")


async def test_a_link_that_ends_holds_up_nobody() -> None:
    async def fail(_data: bytes) -> None:
        raise ConnectionResetError

    wire = Wire()
    async with senders() as (sending, tasks):
        tasks.create_task(sending.bulk(filled(b"chunk"), wire.send))
        with pytest.raises(ConnectionResetError):
            await sending.interactive(filled(b"1", b"2"), fail)
        await wire.carries(b"chunk")


async def test_chunks_that_nobody_reads_hold_up_no_decode_step() -> None:
    peer = WorkerId("w9")
    chunk = activations(segment(tokens=128), hidden_size=1024)
    async with (
        two_ends() as (one, _),
        raw_peer(one.url, f"class=bulk&worker_id={peer}"),
        dialled(one.url, f"class=interactive&worker_id={peer}") as steps,
    ):
        await steps.send_bytes(wire(numbered(1)))
        await one.hears(1)
        for _ in range(100):
            one.links.send(peer, NOWHERE, BULK, chunk)
        one.links.send(peer, NOWHERE, INTERACTIVE, numbered(2))
        while await steps.receive_bytes() != wire(numbered(2)):
            # A ping; it is not answered.
            pass
        assert len(one.links._links[peer, BULK].outbox) > 10


async def test_a_peer_that_reads_nothing_loses_its_link_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outboxes, "QUEUE_BYTES", 1 << 20)
    chunk = activations(segment(tokens=128), hidden_size=1024)
    async with two_ends(EAGER) as (one, other):
        async with raw_peer(one.url, "class=bulk&worker_id=w9") as peer:
            await peer.write(message(len(wire(numbered(1))), wire(numbered(1))))
            await one.hears(1)
            while not one.lost:
                one.links.send(WorkerId("w9"), NOWHERE, BULK, chunk)
                await asyncio.sleep(0)
            assert one.lost == ["w9"]
        one.send(other, 1)
        await other.hears(1)
