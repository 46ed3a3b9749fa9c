"""Looking after links, seen from two Workers' ends of them."""

import asyncio
import time

import pytest

from meshnet_common.protocol.bodies import PingBody, PongBody
from meshnet_worker.transport.liveness import Deadlines
from tests.worker.transport.ends import (
    BULK,
    EAGER,
    QUICK,
    dialled,
    message,
    numbered,
    raw_peer,
    two_ends,
    wire,
)


async def test_both_ends_ping_each_other_on_every_link() -> None:
    async with two_ends(EAGER) as (one, other):
        one.send(other, 1)
        one.send(other, 2, link_class=BULK)
        await one.is_pinged()
        await other.is_pinged()
        assert (one.numbers, sorted(other.numbers)) == ([], [1, 2])


async def test_pings_measure_the_round_trip_to_a_peer() -> None:
    async with two_ends(EAGER) as (one, other):
        one.send(other, 1)
        assert one.links.round_trips() == {}
        for end, peer in ((one, other), (other, one)):
            while peer.worker_id not in end.links.round_trips():
                await end.is_pinged()
            assert 0 < end.links.round_trips()[peer.worker_id] < 60


@pytest.mark.parametrize("link_class", ["interactive", "bulk"])
async def test_a_ping_is_answered_on_the_link_that_asked(link_class: str) -> None:
    async with two_ends() as (one, other):
        one.send(other, 1)
        await other.hears(1)
        other.overdue_seconds = 1.5
        # As that Peer's second link: the first one is still there.
        async with dialled(other.url, f"class={link_class}&worker_id=w1") as websocket:
            await websocket.send_bytes(wire(PingBody(nonce=5)))
            answer = await websocket.receive_bytes()
        assert answer == wire(PongBody(nonce=5, oldest_step_seconds=1.5, overdue_seconds=1.5))


@pytest.mark.parametrize("link_class", ["interactive", "bulk"])
async def test_a_peer_that_goes_silent_is_lost_once(link_class: str) -> None:
    async with two_ends(QUICK) as (one, _):
        async with dialled(one.url, f"class={link_class}&worker_id=w9") as websocket:
            await websocket.send_bytes(wire(numbered(1)))
            await one.hears(1)
            await one.changes.until(lambda: one.lost)
        assert (one.lost, one.reasons) == (["w9"], ["silent for 0 s"])


async def test_a_silent_peer_is_lost_with_both_its_links_and_told_of_once() -> None:
    async with two_ends(QUICK) as (one, _):
        async with (
            dialled(one.url, "class=bulk&worker_id=w9") as chunks,
            dialled(one.url, "class=interactive&worker_id=w9") as steps,
        ):
            await chunks.send_bytes(wire(numbered(1)))
            await steps.send_bytes(wire(numbered(2)))
            await one.changes.until(lambda: sorted(one.numbers) == [1, 2])
            await one.changes.until(lambda: one.lost)
            while not (steps.closed and chunks.closed):
                await chunks.receive()
                await steps.receive()
        assert one.lost == ["w9"]


async def test_a_link_lost_by_silence_is_dialled_anew() -> None:
    async with two_ends(QUICK) as (one, other):
        async with dialled(one.url, f"class=interactive&worker_id={other.worker_id}") as websocket:
            await websocket.send_bytes(wire(numbered(1)))
            await one.hears(1)
            await one.changes.until(lambda: one.lost)
        one.send(other, 2)
        await other.hears(2)


async def test_a_slow_frame_is_no_silence() -> None:
    deadlines = Deadlines(ping_seconds=0.05, silence_seconds=0.5, pause_seconds=0.25)
    frame = wire(numbered(1))
    async with (
        two_ends(deadlines) as (one, _),
        raw_peer(one.url, "class=bulk&worker_id=w9") as peer,
    ):
        await peer.write(message(len(frame)))
        for byte in frame[:30]:
            await peer.write(bytes([byte]))
            await asyncio.sleep(0.05)
        assert one.lost == []
        await peer.write(frame[30:])
        await one.hears(1)
        await peer.is_hung_up_on()
        await one.changes.until(lambda: one.lost)


async def test_a_pause_of_its_own_loses_no_peer() -> None:
    deadlines = Deadlines(ping_seconds=0.02, silence_seconds=0.3, pause_seconds=0.1)
    async with two_ends(deadlines) as (one, other):
        one.send(other, 1)
        await other.is_pinged()
        time.sleep(0.5)  # noqa: ASYNC251 - as a Worker that is stopped
        await one.is_pinged()
        await other.is_pinged()
        assert (one.lost, other.lost) == ([], [])


async def test_a_peer_whose_step_is_overdue_stalls_and_keeps_its_links() -> None:
    async with two_ends(EAGER) as (one, other):
        other.overdue_seconds = 2.9
        one.send(other, 1)
        await other.is_pinged()
        assert one.stalled == []
        other.overdue_seconds = 3.1
        await one.changes.until(lambda: one.stalled == ["w2"])
        one.send(other, 2)
        await other.hears(1, 2)
        assert one.lost == []


async def test_a_stranger_says_nothing_of_a_peers_engine() -> None:
    pong = PongBody(nonce=1, oldest_step_seconds=99.0, overdue_seconds=99.0)
    async with two_ends() as (one, other):
        one.send(other, 1)
        await other.hears(1)
        async with dialled(other.url, f"class=interactive&worker_id={one.worker_id}") as websocket:
            await websocket.send_bytes(wire(pong))
            await websocket.send_bytes(wire(numbered(2)))
            await other.hears(1, 2)
        assert other.stalled == []
