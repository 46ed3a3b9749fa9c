"""What aiohttp's WebSockets do not offer: how a link's socket is tuned, asked, and hung up on."""

import asyncio
import socket
import struct
from contextlib import suppress

import aiohttp
from aiohttp import web

CLOSE_SECONDS = 1.0
"""A Peer that is gone does not answer a closing handshake."""
UNSENT_BYTES = 128 * 1024
"""So much of the bulk class waits in the kernel at most; there nothing overtakes it."""

WebSocket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse

# struct tcp_info of Linux: milliseconds since data last came in.
_LAST_DATA_RECEIVED = struct.Struct("=52xI")


def keep_short_in_kernel(websocket: WebSocket) -> None:
    """Bound what waits unsent in the kernel; aiohttp itself sets TCP_NODELAY on every socket."""
    raw = websocket.get_extra_info("socket")
    if raw is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
        with suppress(OSError):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)


def seconds_since_data(websocket: WebSocket) -> float:
    """How long ago the kernel got any bytes of the Peer; endless where it does not say.

    A large frame on a slow link is no silence, long before it is whole.
    """
    raw = websocket.get_extra_info("socket")
    if raw is None or not hasattr(socket, "TCP_INFO"):
        return float("inf")
    size = _LAST_DATA_RECEIVED.size
    try:
        data = raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
    except OSError:
        return float("inf")
    if len(data) < size:
        return float("inf")
    milliseconds: int = _LAST_DATA_RECEIVED.unpack(data)[0]
    return milliseconds / 1000


def hang_up(websocket: WebSocket) -> None:
    """End a link at once, whatever waits to be sent; its reader finds the end of the stream."""
    raw = websocket.get_extra_info("socket")
    if raw is None:
        return
    # A copy of the descriptor: event loops do not let one shut down theirs.
    with suppress(OSError), raw.dup() as copy:
        copy.shutdown(socket.SHUT_RDWR)


async def say_goodbye(websocket: WebSocket, code: int, reason: str) -> None:
    """Close a link with a reason, and hang up on a Peer that does not listen."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await websocket.close(code=code, message=reason.encode()[:120])
    except (TimeoutError, ConnectionError, aiohttp.ClientError):
        hang_up(websocket)
