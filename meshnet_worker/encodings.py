"""Texts that an engine makes vectors of: who asked for them, and who still wants to know.

Whoever asked may leave at any time; then the engine is told to make nothing more of its texts.
"""

import asyncio
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain, count

from meshnet_common.errors import MeshnetError
from meshnet_worker.engine_port import Command, DropTexts, EncodeTexts


class EncodeFailedError(MeshnetError):
    """The engine could not encode the texts."""


class Encodings:
    """The requests under way at one engine."""

    def __init__(self, send: Callable[[Command, bytes], None]) -> None:
        self._send = send
        self._requests = count()
        self._waiting: dict[int, asyncio.Future[bytes]] = {}

    async def encode(self, shard: int, texts: Sequence[Sequence[int]]) -> bytes:
        """Make a vector of each text's token ids: little-endian float32, row-major.

        Raises EncodeFailedError, and what sending and `lose` say of an engine that is lost.
        """
        request = next(self._requests)
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[request] = future
        ids = array("i", chain.from_iterable(texts))
        try:
            self._send(EncodeTexts(request, shard, tuple(map(len, texts))), ids.tobytes())
            return await future
        finally:
            del self._waiting[request]
            if future.cancelled():
                # An engine that is lost makes nothing of them anyway.
                with suppress(MeshnetError):
                    self._send(DropTexts(request), b"")

    def encoded(self, request: int, vectors: bytes) -> None:
        """Hear of texts; whoever asked may be gone."""
        if (future := self._wanted(request)) is not None:
            future.set_result(vectors)

    def failed(self, request: int, reason: str) -> None:
        """Hear that nothing comes of these texts."""
        if (future := self._wanted(request)) is not None:
            future.set_exception(EncodeFailedError(reason))

    def lose(self, error: MeshnetError) -> None:
        """Fail whatever waits: the engine has ended."""
        for request in tuple(self._waiting):
            if (future := self._wanted(request)) is not None:
                future.set_exception(error)

    def _wanted(self, request: int) -> asyncio.Future[bytes] | None:
        future = self._waiting.get(request)
        return None if future is None or future.done() else future
