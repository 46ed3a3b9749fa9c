"""Gets one page of another server, in bounded time and memory: lists of models, metrics, health."""

import asyncio
import errno
from collections.abc import Mapping

import aiohttp

from meshnet_common.edge.forwarding import (
    NO_ANSWER,
    UpstreamUnreachableError,
    WholeAnswer,
    read_whole,
)

PAGE_SECONDS = 5.0
MOST_PAGE_BYTES = 4 << 20

_NO_WAY_THERE = frozenset({errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH})


class NoSignOfLifeError(UpstreamUnreachableError):
    """Nothing came, not even a refusal: it is frozen, or its host or the way there is gone."""


async def get_page(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str] | None = None
) -> WholeAnswer:
    """Return the page, whatever its status; raises UpstreamUnreachableError where there is none."""
    try:
        async with asyncio.timeout(PAGE_SECONDS), session.get(url, headers=headers) as response:
            return await read_whole(response, MOST_PAGE_BYTES)
    except NO_ANSWER as error:
        kind = NoSignOfLifeError if _is_silence(error) else UpstreamUnreachableError
        raise kind(f"{type(error).__name__}.") from error


def _is_silence(error: Exception) -> bool:
    is_lost = isinstance(error, OSError) and error.errno in _NO_WAY_THERE
    return is_lost or isinstance(error, TimeoutError)
