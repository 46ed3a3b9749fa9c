"""Persistent links to Peers: one WebSocket per Peer and class, opened by either side.

Sending never waits: a frame joins the link's bounded queue, and a link that cannot keep up is a
fault of that link. Reading never waits either: each frame is handed on as soon as it is whole.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import aiohttp
import structlog
from aiohttp import web

from meshnet_common.errors import ProtocolError
from meshnet_common.ids import WorkerId
from meshnet_common.openai.errors import invalid_request
from meshnet_common.protocol.bodies import Body, from_frame, to_frame
from meshnet_common.protocol.frames import (
    MAX_HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    PREFIX_BYTES,
    decode_frame,
    encode_frame,
)

QUEUE_FRAMES = 1024
MAX_MESSAGE_BYTES = PREFIX_BYTES + MAX_HEADER_BYTES + MAX_PAYLOAD_BYTES
HEARTBEAT_SECONDS = 6.0
"""A Peer that answers no WebSocket ping for half of this after one was sent is lost."""
DIAL_SECONDS = 5.0
CLOSE_SECONDS = 1.0
"""A Peer that is gone does not answer a closing handshake."""

log = structlog.get_logger()


class LinkClass(StrEnum):
    """Decode Steps, tokens and control travel apart from Prefill Chunks."""

    INTERACTIVE = "interactive"
    BULK = "bulk"


@dataclass(frozen=True, slots=True)
class LinkListener:
    """Who hears the frames of Peers, and that a Peer can no longer be reached."""

    on_body: Callable[[WorkerId, Body], None]
    on_peer_lost: Callable[[WorkerId], None]


WebSocket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


@dataclass(slots=True)
class _Link:
    """What waits to be sent to one Peer in one class; a link that is being dialled has no task."""

    worker_id: WorkerId
    queue: asyncio.Queue[bytes] = field(default_factory=lambda: asyncio.Queue(QUEUE_FRAMES))
    is_lost: bool = False


class Links:
    """All links of this Worker."""

    def __init__(
        self, worker_id: WorkerId, listener: LinkListener, tasks: asyncio.TaskGroup
    ) -> None:
        self._worker_id = worker_id
        self._listener = listener
        self._tasks = tasks
        self._links: dict[tuple[WorkerId, LinkClass], _Link] = {}
        self._websockets: set[WebSocket] = set()
        self._session: aiohttp.ClientSession | None = None

    def send(self, worker_id: WorkerId, url: str, link_class: LinkClass, body: Body) -> None:
        """Queue a frame for a Peer, dialling it if no link is open; losing it is told later."""
        link = self._links.get((worker_id, link_class))
        if link is None:
            link = _Link(worker_id)
            self._links[worker_id, link_class] = link
            start_task(self._tasks, self._dial(link, url, link_class))
        self._queue(link, body)

    def answer(self, worker_id: WorkerId, body: Body) -> None:
        """Queue a frame for a Peer that has a link open; without one there is nobody to answer."""
        link = self._links.get((worker_id, LinkClass.INTERACTIVE))
        if link is not None:
            self._queue(link, body)

    def _queue(self, link: _Link, body: Body) -> None:
        try:
            link.queue.put_nowait(encode_frame(to_frame(body)))
        except asyncio.QueueFull:
            self._lose(link, f"{QUEUE_FRAMES} frames wait to be sent")

    async def accept(self, request: web.Request) -> web.WebSocketResponse:
        """Handle `GET /link?class=interactive|bulk&worker_id=ID`."""
        try:
            link_class = LinkClass(request.query.get("class", LinkClass.INTERACTIVE))
            worker_id = WorkerId(request.query["worker_id"])
        except (KeyError, ValueError) as error:
            message = "A link is dialled as /link?class=interactive|bulk&worker_id=ID."
            raise invalid_request(message) from error
        websocket = web.WebSocketResponse(
            timeout=CLOSE_SECONDS,
            max_msg_size=MAX_MESSAGE_BYTES,
            compress=False,
            heartbeat=HEARTBEAT_SECONDS,
        )
        await websocket.prepare(request)
        link = _Link(worker_id)
        self._links.setdefault((worker_id, link_class), link)
        await self._serve(link, websocket)
        return websocket

    async def close(self) -> None:
        """Hang up on every Peer, so that none of them has to find out by silence."""
        async with asyncio.TaskGroup() as closing:
            for websocket in tuple(self._websockets):
                closing.create_task(websocket.close(code=aiohttp.WSCloseCode.GOING_AWAY))
        if self._session is not None:
            await self._session.close()

    async def _dial(self, link: _Link, url: str, link_class: LinkClass) -> None:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(connector=connector)
        query = {"class": link_class.value, "worker_id": self._worker_id}
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                websocket = await self._session.ws_connect(
                    f"{url}/link",
                    params=query,
                    timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_SECONDS),
                    max_msg_size=MAX_MESSAGE_BYTES,
                    compress=0,
                    heartbeat=HEARTBEAT_SECONDS,
                )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._lose(link, f"{url} cannot be reached: {str(error) or type(error).__name__}")
            return
        await self._serve(link, websocket)

    async def _serve(self, link: _Link, websocket: WebSocket) -> None:
        self._websockets.add(websocket)
        sender = self._tasks.create_task(_send_queued(link, websocket))
        reason = "the Peer closed it"
        try:
            async for message in websocket:
                self._listener.on_body(link.worker_id, _read(message))
        except (ConnectionError, aiohttp.ClientError) as error:
            reason = str(error)
        except ProtocolError as error:
            reason = str(error)
            await websocket.close(
                code=aiohttp.WSCloseCode.PROTOCOL_ERROR, message=reason.encode()[:120]
            )
        finally:
            sender.cancel()
            self._websockets.discard(websocket)
            self._lose(link, reason)
            await websocket.close()

    def _lose(self, link: _Link, reason: str) -> None:
        if link.is_lost:
            return
        link.is_lost = True
        keys = [key for key, known in self._links.items() if known is link]
        for key in keys:
            del self._links[key]
        log.info("link lost", peer=link.worker_id, reason=reason)
        # A second link, or a stranger's that only says whose it is, takes nothing with it.
        if keys:
            self._listener.on_peer_lost(link.worker_id)


def start_task(tasks: asyncio.TaskGroup, work: Coroutine[Any, Any, None]) -> None:
    """Start work, unless the Worker is stopping: then nobody needs to be told of anything."""
    try:
        tasks.create_task(work)
    except RuntimeError:
        work.close()


def _read(message: aiohttp.WSMessage) -> Body:
    if message.type is not aiohttp.WSMsgType.BINARY:
        raise ProtocolError("A link carries binary frames only.")
    return from_frame(decode_frame(message.data))


async def _send_queued(link: _Link, websocket: WebSocket) -> None:
    while not link.is_lost:
        data = await link.queue.get()
        try:
            await websocket.send_bytes(data)
        except (ConnectionError, aiohttp.ClientError):
            # The reader of the same socket sees its end and says so.
            return
