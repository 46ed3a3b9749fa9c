"""Names how a request's conversation begins, so that a warm cache can be found again; pure.

Nothing is refused here: what cannot be read has the key of its own bytes.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from xxhash import xxh3_64_hexdigest

from meshnet_common.affinity import prefix_key

OPENING_BYTES = 512


class Opening(msgspec.Struct, frozen=True):
    """What may tell one conversation from another, in any API."""

    model: str
    user: str | None = None
    messages: list[dict[str, Any]] = []


def affinity_key(body: bytes) -> str:
    """Return the key of the client's `user` if it names one, else of what is said first."""
    try:
        opening = msgspec.json.decode(body, type=Opening)
    except (msgspec.DecodeError, RecursionError):
        return xxh3_64_hexdigest(body[:OPENING_BYTES])
    if opening.user:
        return xxh3_64_hexdigest(opening.user.encode())
    if opening.messages:
        return prefix_key(opening.model, _turns(opening.messages))
    return xxh3_64_hexdigest(body[:OPENING_BYTES])


def _turns(messages: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for message in messages:
        yield str(message.get("role")), str(message.get("content"))
