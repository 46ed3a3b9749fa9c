"""Where the time of one request goes, and which way it went: told in the headers of its answer.

They say what is known when they go out: at an answer's first event, or before, where a client that
waits is told so.
"""

import hashlib
from collections.abc import Iterable, Mapping
from enum import Enum

from meshnet_common.edge.clock import loop_time
from meshnet_common.protocol.messages import RouteHop

QUEUE_HEADER = "x-meshnet-queue-ms"
OVERHEAD_HEADER = "x-meshnet-overhead-ms"
ROUTE_HEADER = "x-meshnet-route-id"
_ID_CHARACTERS = 16


class Doing(Enum):
    """What a request waits for."""

    HERE = "here"
    """This Tracker, which works on it."""
    QUEUED = "queued"
    """Layers that are about to be served, or room at its Workers."""
    AT_WORKERS = "at workers"


class AnswerTimes:
    """One request's time so far; it begins with this Tracker's own work."""

    def __init__(self) -> None:
        self._doing = Doing.HERE
        self._since = loop_time()
        self._seconds = dict.fromkeys(Doing, 0.0)
        self._route = ""

    def turn(self, doing: Doing) -> None:
        """Take up that it waits for something else from now on."""
        now = loop_time()
        self._seconds[self._doing] += now - self._since
        self._doing, self._since = doing, now

    def goes_by(self, hops: Iterable[RouteHop]) -> None:
        """Take up which Route it goes by now."""
        self._route = route_id(hops)

    def headers(self) -> Mapping[str, str]:
        """Tell what is known by now."""
        self.turn(self._doing)
        route = {ROUTE_HEADER: self._route} if self._route else {}
        return {
            QUEUE_HEADER: _milliseconds(self._seconds[Doing.QUEUED]),
            OVERHEAD_HEADER: _milliseconds(self._seconds[Doing.HERE]),
            **route,
        }


def route_id(hops: Iterable[RouteHop]) -> str:
    """Name a Route without its Workers: it is the same for the same Layers on the same Workers."""
    facts = "\n".join(f"{hop.worker_id} {hop.start} {hop.end}" for hop in hops)
    return f"route_{hashlib.sha256(facts.encode()).hexdigest()[:_ID_CHARACTERS]}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f}"
