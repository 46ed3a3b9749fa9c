"""Which Sessions' activations are on their way to a Peer, and for how long; pure.

A socket takes more than the wire has carried, so what was written is on its way until the Peer has
answered a ping that was written after it.
"""

from collections import Counter, deque
from collections.abc import Iterator
from typing import NamedTuple

from meshnet_common.protocol.bodies import ActivationFrame, Body, CloseBody, Epoch

MOST_REMEMBERED = 4096
"""Frames, and pings, of a Peer that reads and never answers."""


class Part(NamedTuple):
    """What a frame has of one Session."""

    session_id: str
    epoch: Epoch


Parts = tuple[Part, ...]


def parts_of(body: Body) -> Parts:
    """Whose activations a body has."""
    if not isinstance(body, ActivationFrame):
        return ()
    return tuple(Part(segment.session_id, segment.epoch) for segment in body.header.segments)


def outdated_by(body: Body) -> Parts:
    """What makes older activations useless: of each Session those below an epoch."""
    if isinstance(body, CloseBody):
        incarnation, rollback = body.epoch
        return (Part(body.session_id, (incarnation, rollback + 1)),)
    return parts_of(body)


class Lowest:
    """Of each Session with activations in a queue, an epoch that none of them is below.

    So a Decode Step need not look through the chunks of others that wait.
    """

    def __init__(self) -> None:
        self._epochs: dict[str, Epoch] = {}
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._epochs)

    def add(self, parts: Parts) -> None:
        for session_id, epoch in parts:
            self._counts[session_id] += 1
            self._epochs[session_id] = min(epoch, self._epochs.get(session_id, epoch))

    def remove(self, parts: Parts) -> None:
        """Note that something that was added is gone."""
        for session_id, _ in parts:
            self._counts[session_id] -= 1
            if not self._counts[session_id]:
                del self._counts[session_id], self._epochs[session_id]

    def may_be_below(self, newest: Part) -> bool:
        """Whether the queue may have activations of this Session below this epoch."""
        lowest = self._epochs.get(newest.session_id)
        return lowest is not None and lowest < newest.epoch

    def lift(self, newest: Part) -> None:
        """Note that all of this Session below this epoch that could be dropped is dropped."""
        if newest.session_id in self._epochs:
            self._epochs[newest.session_id] = newest.epoch


class _Written(NamedTuple):
    number: int
    parts: Parts
    since: float


class _Asked(NamedTuple):
    nonce: int
    written: int


class Underway:
    """What one link's socket has been given and the Peer has not got for certain."""

    def __init__(self) -> None:
        self._written: deque[_Written] = deque(maxlen=MOST_REMEMBERED)
        self._asked: deque[_Asked] = deque(maxlen=MOST_REMEMBERED)
        self._count = 0

    def write(self, parts: Parts, since: float) -> None:
        """Note a frame that the socket is given, and since when it waited for that."""
        if parts:
            self._count += 1
            self._written.append(_Written(self._count, parts, since))

    def ask(self, nonce: int) -> None:
        """Note a ping that the socket is given."""
        self._asked.append(_Asked(nonce, self._count))

    def answer(self, nonce: int) -> None:
        """Note a pong: the Peer has all that was written before its ping."""
        asked = next((one for one in self._asked if one.nonce == nonce), None)
        if asked is None:
            return
        while self._asked[0] is not asked:
            self._asked.popleft()
        self._asked.popleft()
        while self._written and self._written[0].number <= asked.written:
            self._written.popleft()

    def sessions(self, before: float) -> Iterator[str]:
        """The Sessions of frames that have been waiting and on their way since before then."""
        for frame in self._written:
            if frame.since <= before:
                yield from (part.session_id for part in frame.parts)
