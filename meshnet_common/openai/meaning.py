"""What a request asks for, as a digest: the same for every body that asks the same; pure.

Blanks, the order of keys, fields that change nothing, and how the answer is read make no other one.
"""

import hashlib
from collections.abc import Callable
from typing import TypeVar

import msgspec

# How an answer is told, and what it only repeats.
_MANNERS = frozenset({"stream", "include_usage", "as_base64", "body"})

Request = TypeVar("Request", bound=msgspec.Struct)


def meaning_of(request: msgspec.Struct) -> bytes:
    """Return the digest of a request that was read and checked."""
    facts = msgspec.structs.asdict(request)
    asked = {name: fact for name, fact in facts.items() if name not in _MANNERS}
    asked["kind"] = type(request).__name__
    return hashlib.sha256(msgspec.json.encode(asked, order="deterministic")).digest()


def read_with_meaning(parse: Callable[[bytes], Request], body: bytes) -> tuple[Request, bytes]:
    """Read a body, and say what it asks for; raises what `parse` raises."""
    request = parse(body)
    return request, meaning_of(request)
