"""Affinity: the same beginning of a conversation goes to the same Workers; pure.

Rendezvous hashing: a key gives every Worker a share of its own, and the least share wins. So one
Worker that leaves moves only its own conversations, and one that joins takes its part of each
other's. Affinity never outweighs load: it makes a Worker dearer by a small factor at most.
"""

from collections.abc import Iterable
from itertools import takewhile

from xxhash import xxh3_64_hexdigest, xxh64_intdigest

from meshnet_common.ids import WorkerId

AFFINITY_SPREAD = 0.25
"""The Worker that suits a conversation least is made dearer by so much."""


def share(key: str, worker_id: WorkerId) -> float:
    """Draw a number in [0, 1), the same one for the same key and Worker on every Tracker."""
    return xxh64_intdigest(f"{key} {worker_id}".encode()) / 2**64


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
