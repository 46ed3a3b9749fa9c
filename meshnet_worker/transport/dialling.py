"""Dials a Peer: a refused dial is tried again soon, one that hangs is given up.

A Worker that restarts refuses for a moment; one behind a cut wire never answers at all.
"""

import asyncio
from collections.abc import Mapping

import aiohttp

from meshnet_common.errors import MeshnetError
from meshnet_worker.transport.sockets import CLOSE_SECONDS

DIAL_SECONDS = 3.0
BACK_OFF_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.75)

NEVER_A_PEER = (aiohttp.ClientError, OSError, ValueError)
"""What else a dial may end with: something that is no Worker, or an address that is none."""


class UnreachableError(MeshnetError):
    """It cannot be reached."""


class Dialling:
    """The dialled half of a Worker's links."""

    def __init__(self, max_message_bytes: int) -> None:
        self._max_message_bytes = max_message_bytes
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False

    async def dial(self, url: str, query: Mapping[str, str]) -> aiohttp.ClientWebSocketResponse:
        """Open a link; raises UnreachableError."""
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                return await self._dial_until_answered(url, query)
        except TimeoutError as error:
            raise UnreachableError(f"{url} did not answer for {DIAL_SECONDS:.0f} s.") from error
        except NEVER_A_PEER as error:
            facts = str(error) or type(error).__name__
            raise UnreachableError(f"{url}: {facts}.") from error

    async def close(self) -> None:
        """Close what is still dialled, and dial no more."""
        self._is_closed = True
        if self._session is not None:
            await self._session.close()

    async def _dial_until_answered(
        self, url: str, query: Mapping[str, str]
    ) -> aiohttp.ClientWebSocketResponse:
        for pause_seconds in BACK_OFF_SECONDS:
            try:
                return await self._dial_once(url, query)
            except (aiohttp.ClientConnectionError, ConnectionError):
                await asyncio.sleep(pause_seconds)
        return await self._dial_once(url, query)

    async def _dial_once(
        self, url: str, query: Mapping[str, str]
    ) -> aiohttp.ClientWebSocketResponse:
        if self._is_closed:
            raise UnreachableError("This Worker dials no more.")
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return await self._session.ws_connect(
            f"{url}/link",
            params=query,
            timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_SECONDS),
            max_msg_size=self._max_message_bytes,
            compress=0,
        )
