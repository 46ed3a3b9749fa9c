"""Affinity: the same beginning of a conversation goes to the same place; pure.

Rendezvous hashing: a key gives every name a share of its own, and the least share wins. So one
Worker or Endpoint that leaves moves only its own conversations, and one that joins takes its part
of each other's.
"""

from collections.abc import Iterable
from itertools import takewhile

from xxhash import xxh3_64_hexdigest, xxh64_intdigest


def share(key: str, name: str) -> float:
    """Draw a number in [0, 1), the same one for the same key and name in every process."""
    return xxh64_intdigest(f"{key} {name}".encode()) / 2**64


def prefix_key(model: str, turns: Iterable[tuple[str, str]]) -> str:
    """Name what a conversation begins with: what comes before its first answer.

    `turns` are roles and texts. All turns of one conversation begin alike, and so do conversations
    with the same long instructions and the same first question.
    """
    opening = takewhile(lambda turn: turn[0] != "assistant", turns)
    first: list[str] = []
    for role, text in opening:
        first += (role, text)
        if role == "user":
            break
    return xxh3_64_hexdigest("\0".join((model, *first)).encode())
