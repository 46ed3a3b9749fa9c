"""Persistent links to Peers: one WebSocket per Peer and class, opened by either side.

Sending never waits: a frame joins the link's bounded queue, and a link that cannot keep up is a
fault of that link. Reading never waits either: each frame is handed on as soon as it is whole. A
link that was lost is dialled anew by the next frame; what it still had to send is not sent again.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

import aiohttp
import structlog
from aiohttp import web

from meshnet_common.errors import ProtocolError
from meshnet_common.ids import WorkerId
from meshnet_common.openai.errors import invalid_request
from meshnet_common.protocol.bodies import Body, PingBody, PongBody, from_frame, to_frame
from meshnet_common.protocol.frames import (
    MAX_HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    PREFIX_BYTES,
    decode_frame,
    encode_frame,
)
from meshnet_worker.transport.dialling import Dialling, UnreachableError
from meshnet_worker.transport.liveness import Deadlines, Signs, Stalls
from meshnet_worker.transport.outbox import Outbox, OutboxFullError, Sending
from meshnet_worker.transport.round_trips import RoundTrips, shortest_trips
from meshnet_worker.transport.sockets import (
    CLOSE_SECONDS,
    WebSocket,
    hang_up,
    keep_short_in_kernel,
    say_goodbye,
)
from meshnet_worker.transport.tasks import start_task
from meshnet_worker.transport.underway import outdated_by, parts_of
from meshnet_worker.transport.watch import OpenLink, StepAges, Watch

MAX_MESSAGE_BYTES = PREFIX_BYTES + MAX_HEADER_BYTES + MAX_PAYLOAD_BYTES
SLOW_PINGS = 2.0
"""Activations that are on their way for longer than so many pings take are told of."""

log = structlog.get_logger()


class LinkClass(StrEnum):
    """Decode Steps, tokens and control travel apart from Prefill Chunks."""

    INTERACTIVE = "interactive"
    BULK = "bulk"


@dataclass(frozen=True, slots=True)
class LinkListener:
    """Who hears the frames of Peers and what becomes of Peers, and who knows the own engine."""

    on_body: Callable[[WorkerId, Body], None]
    on_peer_lost: Callable[[WorkerId, str], None]
    """Hears once of each link that is lost, and why; the Peer may be reached by another."""
    on_peer_stalled: Callable[[WorkerId, str], None]
    """Hears that a Peer's engine does not get on, again and again while it lasts."""
    step_ages: Callable[[], StepAges]


@dataclass(slots=True, eq=False)
class _Link:
    """What waits to be sent to one Peer in one class, whether a socket is open yet or not."""

    worker_id: WorkerId
    link_class: LinkClass
    outbox: Outbox = field(default_factory=Outbox)
    trips: RoundTrips = field(default_factory=RoundTrips)
    is_lost: bool = False


class Links:
    """All links of this Worker."""

    def __init__(
        self,
        worker_id: WorkerId,
        listener: LinkListener,
        tasks: asyncio.TaskGroup,
        deadlines: Deadlines | None = None,
    ) -> None:
        self._worker_id = worker_id
        self._listener = listener
        self._tasks = tasks
        self._deadlines = deadlines or Deadlines()
        self._links: dict[tuple[WorkerId, LinkClass], _Link] = {}
        self._watch = Watch(self._deadlines, tasks, self._on_round)
        self._on_waiting: Callable[[Iterable[str]], None] | None = None
        self._stalls = Stalls(self._deadlines)
        self._sending = Sending()
        self._dialling = Dialling(MAX_MESSAGE_BYTES)
        self._is_closed = False

    def send(self, worker_id: WorkerId, url: str, link_class: LinkClass, body: Body) -> None:
        """Queue a frame for a Peer, dialling it if no link is open; losing it is told later."""
        if self._is_closed:
            return
        try:
            data = encode_frame(to_frame(body))
        except ProtocolError:
            # It costs the Session that it belongs to, and nobody else.
            log.exception("frame not sent", peer=worker_id)
            return
        self._purge(body)
        link = self._links.get((worker_id, link_class))
        if link is None:
            link = _Link(worker_id, link_class)
            self._links[worker_id, link_class] = link
            start_task(self._tasks, self._dial(link, url))
        try:
            link.outbox.put(data, parts_of(body), asyncio.get_running_loop().time())
        except OutboxFullError as error:
            self._lose(link, str(error))

    def tell_who_waits(self, on_waiting: Callable[[Iterable[str]], None]) -> None:
        """Tell, once a second, of the Sessions whose activations a slow link holds up."""
        self._on_waiting = on_waiting

    def waiting_sessions(self) -> frozenset[str]:
        """The Sessions whose activations wait for long while their link moves.

        That it moves is seen by the Peer: one that gets nothing would hang up, and be silent first.
        """
        now = asyncio.get_running_loop().time()
        before = now - SLOW_PINGS * self._deadlines.ping_seconds
        moving = (one for one in self._watch if not one.signs.is_silent(now))
        return frozenset(name for one in moving for name in one.outbox.sessions(before))

    def round_trips(self) -> Mapping[WorkerId, float]:
        """Return the shortest of the last round trips to each Peer, in seconds."""
        return shortest_trips((peer, link.trips) for (peer, _), link in self._links.items())

    async def accept(self, request: web.Request) -> web.WebSocketResponse:
        """Handle `GET /link?class=interactive|bulk&worker_id=ID`."""
        try:
            link_class = LinkClass(request.query.get("class", LinkClass.INTERACTIVE))
            worker_id = WorkerId(request.query["worker_id"])
        except (KeyError, ValueError) as error:
            message = "A link is dialled as /link?class=interactive|bulk&worker_id=ID."
            raise invalid_request(message) from error
        if worker_id == self._worker_id:
            # What a Worker says to itself is believed.
            raise invalid_request("This worker_id is the answering Worker's own.", "worker_id")
        websocket = web.WebSocketResponse(
            timeout=CLOSE_SECONDS, max_msg_size=MAX_MESSAGE_BYTES, compress=False
        )
        await websocket.prepare(request)
        link = _Link(worker_id, link_class)
        self._links.setdefault((worker_id, link_class), link)
        await self._serve(link, websocket)
        return websocket

    async def close(self) -> None:
        """Hang up on every Peer, so that none of them has to find out by silence."""
        self._is_closed = True
        async with asyncio.TaskGroup() as closing:
            for one in self._watch:
                goodbye = say_goodbye(one.websocket, aiohttp.WSCloseCode.GOING_AWAY, "")
                closing.create_task(goodbye)
        await self._dialling.close()

    async def _dial(self, link: _Link, url: str) -> None:
        query = {"class": link.link_class.value, "worker_id": self._worker_id}
        try:
            websocket = await self._dialling.dial(url, query)
        except UnreachableError as error:
            self._lose(link, str(error))
        except Exception as error:
            # Whatever goes wrong on one link, the Worker and its other links live on.
            log.exception("dial failed", peer=link.worker_id)
            self._lose(link, repr(error))
        else:
            if link.is_lost:
                # What it had to send was given up while it was dialled.
                await say_goodbye(websocket, aiohttp.WSCloseCode.GOING_AWAY, "")
            else:
                await self._serve(link, websocket)

    async def _serve(self, link: _Link, websocket: WebSocket) -> None:
        now = asyncio.get_running_loop().time()
        one = OpenLink(
            websocket=websocket,
            outbox=link.outbox,
            signs=Signs(now, self._deadlines),
            trips=link.trips,
            on_silent=partial(self._on_silent, link),
        )
        self._watch.begin(one)
        code, reason = aiohttp.WSCloseCode.OK, "The Peer closed the link."
        try:
            await self._talk(link, one)
        except* ProtocolError as errors:
            code, reason = aiohttp.WSCloseCode.PROTOCOL_ERROR, _first(errors)
        except* (OSError, aiohttp.ClientError) as errors:
            reason = _first(errors)
        except* Exception as errors:
            log.exception("link failed", peer=link.worker_id)
            reason = _first(errors)
        finally:
            self._watch.end(one)
            self._lose(link, reason)
            await say_goodbye(websocket, code, reason)

    async def _talk(self, link: _Link, one: OpenLink) -> None:
        """Send and hear until the Peer hangs up; raises a group of whatever else ends it."""
        async with asyncio.TaskGroup() as both:
            sender = both.create_task(self._send(link, one))
            async for message in one.websocket:
                self._hear(link, one, _read(message))
            sender.cancel()

    async def _send(self, link: _Link, one: OpenLink) -> None:
        if link.link_class is LinkClass.BULK:
            keep_short_in_kernel(one.websocket)
            await self._sending.bulk(one.outbox, one.websocket.send_bytes)
        else:
            await self._sending.interactive(one.outbox, one.websocket.send_bytes)

    def _hear(self, link: _Link, one: OpenLink, body: Body) -> None:
        now = asyncio.get_running_loop().time()
        one.signs.hear(now)
        match body:
            case PingBody(nonce=nonce):
                one.pong(nonce, self._listener.step_ages())
            case PongBody(nonce=nonce, overdue_seconds=overdue):
                one.outbox.answer(nonce)
                one.trips.answered(nonce, now)
                # A stranger's link that only says whose it is does not speak for that Peer.
                if self._is_known(link) and self._stalls.is_news(link.worker_id, overdue, now):
                    reason = f"Its engine's step is {overdue:.0f} s overdue."
                    self._listener.on_peer_stalled(link.worker_id, reason)
            case _:
                self._listener.on_body(link.worker_id, body)

    def _on_round(self) -> None:
        waiting = self.waiting_sessions()
        if waiting and self._on_waiting is not None:
            self._on_waiting(waiting)

    def _purge(self, body: Body) -> None:
        for newest in outdated_by(body):
            for link in self._links.values():
                link.outbox.purge(newest)

    def _is_known(self, link: _Link) -> bool:
        return self._links.get((link.worker_id, link.link_class)) is link

    def _on_silent(self, link: _Link, reason: str) -> None:
        # The Peer's other link would follow within a second: one loss is told, not two.
        if self._is_known(link):
            for link_class in LinkClass:
                sibling = self._links.get((link.worker_id, link_class))
                if sibling is not None and sibling is not link:
                    self._drop(sibling, reason)
        self._lose(link, reason)

    def _lose(self, link: _Link, reason: str) -> None:
        # A second link, or a stranger's that only says whose it is, takes nothing with it.
        if self._drop(link, reason):
            # Later, not now: who sends is in the middle of something.
            loop = asyncio.get_running_loop()
            loop.call_soon(self._listener.on_peer_lost, link.worker_id, reason)

    def _drop(self, link: _Link, reason: str) -> bool:
        """Give a link up; returns whether frames to its Peer went there."""
        if link.is_lost:
            return False
        link.is_lost = True
        log.info("link lost", peer=link.worker_id, reason=reason)
        for one in self._watch:
            if one.outbox is link.outbox:
                hang_up(one.websocket)
        was_known = self._is_known(link)
        if was_known:
            del self._links[link.worker_id, link.link_class]
            self._stalls.forget(link.worker_id)
        return was_known


def _read(message: aiohttp.WSMessage) -> Body:
    if message.type is aiohttp.WSMsgType.ERROR:
        raise ProtocolError(str(message.data))
    if message.type is not aiohttp.WSMsgType.BINARY:
        raise ProtocolError("A link carries binary frames only.")
    return from_frame(decode_frame(message.data))


def _first(errors: BaseExceptionGroup[BaseException]) -> str:
    error = errors.exceptions[0]
    return str(error) or type(error).__name__
