"""A link that is slow and moves holds Sessions up; that is told, and no fault."""

from collections.abc import Iterable

from aiohttp import ClientWebSocketResponse

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.bodies import PingBody, PongBody, from_frame
from meshnet_common.protocol.frames import decode_frame
from tests.common.builders import activations, segment
from tests.worker.transport.ends import (
    BULK,
    EAGER,
    NOWHERE,
    QUICK,
    End,
    dialled,
    numbered,
    two_ends,
    wire,
)

PEER = WorkerId("w9")


class Told:
    """Notes of whom it is told."""

    def __init__(self, end: End) -> None:
        self.session_ids: set[str] = set()
        self._end = end
        end.links.tell_who_waits(self._note)

    def _note(self, session_ids: Iterable[str]) -> None:
        self.session_ids.update(session_ids)
        self._end.changes.tell()


async def answers_pings(peer: ClientWebSocketResponse) -> None:
    """Read up to the next ping, and answer it."""
    while True:
        body = from_frame(decode_frame(await peer.receive_bytes()))
        if isinstance(body, PingBody):
            await peer.send_bytes(wire(PongBody(nonce=body.nonce, oldest_step_seconds=0.0)))
            return


async def test_sessions_that_wait_for_a_peer_are_told_of_until_it_has_their_activations() -> None:
    async with two_ends(EAGER) as (one, _):
        told = Told(one)
        async with dialled(one.url, f"class=bulk&worker_id={PEER}") as peer:
            await peer.send_bytes(wire(numbered(1)))
            await one.hears(1)
            one.links.send(PEER, NOWHERE, BULK, activations(segment(session_id="s7")))
            await one.changes.until(lambda: told.session_ids == {"s7"})
            while one.links.waiting_sessions():
                await answers_pings(peer)
            assert one.lost == []


async def test_nobody_waits_for_a_peer_that_keeps_up() -> None:
    async with two_ends(EAGER) as (one, other):
        one.links.send(other.worker_id, other.url, BULK, activations(segment()))
        await other.changes.until(lambda: other.heard)
        written = one.links._links[other.worker_id, BULK].outbox._underway._written
        while written:
            await other.is_pinged(1)
        assert one.links.waiting_sessions() == frozenset()


async def test_nobody_waits_for_a_peer_that_is_silent() -> None:
    async with (
        two_ends(QUICK) as (one, _),
        dialled(one.url, f"class=bulk&worker_id={PEER}") as peer,
    ):
        await peer.send_bytes(wire(numbered(1)))
        await one.hears(1)
        one.links.send(PEER, NOWHERE, BULK, activations(segment()))
        await one.changes.until(lambda: one.lost)
        assert one.links.waiting_sessions() == frozenset()
