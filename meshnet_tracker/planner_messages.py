"""What a Tracker and its planner process say to each other: one JSON text a line.

The Tracker first tells where the database is, then asks for passes; each is answered once.
"""

import msgspec

from meshnet_tracker.planning.snapshot import PlannerPolicy, RebalanceDirective

MAX_LINE_BYTES = 64 * 1024 * 1024


class Opening(msgspec.Struct, frozen=True):
    """The first line; a database's URL may hold a password, so it is no argument."""

    database: str


class PlanRequest(msgspec.Struct, frozen=True):
    """Asks for one planning pass."""

    policy: PlannerPolicy
    now: float


class Planned(msgspec.Struct, frozen=True, tag="planned"):
    """What one pass decided, and how many plans were issued before what it looked at."""

    directives: tuple[RebalanceDirective, ...]
    issued_plans: int
    seconds: float = 0.0
    """Processor time of the planning itself."""


class DatabaseAway(msgspec.Struct, frozen=True, tag="database_away"):
    """The pass could not read the database."""

    reason: str


class PassFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The planner itself failed."""

    reason: str


PlanAnswer = Planned | DatabaseAway | PassFailed

_opening = msgspec.json.Decoder(Opening)
_request = msgspec.json.Decoder(PlanRequest)
_answer: msgspec.json.Decoder[PlanAnswer] = msgspec.json.Decoder(PlanAnswer)


def encode_line(message: Opening | PlanRequest | PlanAnswer) -> bytes:
    """Write one line; JSON has no line break inside."""
    return msgspec.json.encode(message) + b"\n"


def decode_opening(line: bytes) -> Opening:
    """Read the first line; raises ValidationError."""
    return _opening.decode(line)


def decode_request(line: bytes) -> PlanRequest:
    """Read a request; raises ValidationError."""
    return _request.decode(line)


def decode_answer(line: bytes) -> PlanAnswer:
    """Read an answer; raises ValidationError."""
    return _answer.decode(line)
