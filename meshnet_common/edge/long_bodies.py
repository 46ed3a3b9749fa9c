"""Reads long bodies beside the event loop, on which everybody else's answers go on meanwhile."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

Parsed = TypeVar("Parsed")

LONG_BODY_BYTES = 16 << 10
"""From here on a body may take more than a few milliseconds: megabytes take a third of a second."""


async def parse_body(parse: Callable[[bytes], Parsed], body: bytes) -> Parsed:
    """Parse a body; raises what `parse` raises."""
    if len(body) < LONG_BODY_BYTES:
        return parse(body)
    return await asyncio.to_thread(parse, body)
