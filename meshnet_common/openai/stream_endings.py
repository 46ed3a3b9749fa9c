"""How a stream ends for a client: when all was told, and when it fails after it began; pure."""

from dataclasses import dataclass
from typing import Protocol

import msgspec

from meshnet_common.openai.errors import SERVER_ERROR, ErrorBody, ErrorEnvelope
from meshnet_common.openai.sse import DONE_EVENT, data_event

DONE = b"[DONE]"

_LAST_TYPES = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})


class StreamEnding(Protocol):
    """The last bytes of an API's streams."""

    @property
    def done(self) -> bytes:
        """What follows the last event of an answer."""

    def is_told(self, last_data: bytes) -> bool:
        """Tell whether a stream whose last event held this data is whole."""

    def failed(self, envelope: bytes, events: int) -> bytes:
        """End with an error, behind so many events; `envelope` is an error answer's body."""


@dataclass(frozen=True, slots=True)
class DoneEnding:
    """Ends with `[DONE]`, also behind an error, which is an event like any other."""

    done: bytes = DONE_EVENT

    def is_told(self, last_data: bytes) -> bool:
        return last_data == DONE

    def failed(self, envelope: bytes, events: int) -> bytes:  # noqa: ARG002 - they are not counted
        return data_event(b" ".join(envelope.splitlines())) + DONE_EVENT


class TypedEvent(msgspec.Struct, frozen=True):
    """All that has to be known of an event to tell whether it is the last one."""

    type: str


class ErrorEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The event that tells of an error where every event has a number."""

    type: str = "error"
    code: str | None
    message: str
    param: str | None
    sequence_number: int


@dataclass(frozen=True, slots=True)
class NumberedEnding:
    """Ends with the last event, or with the error, which has the number that is next."""

    done: bytes = b""

    def is_told(self, last_data: bytes) -> bool:
        # Some servers close these streams as they do all others.
        return last_data == DONE or _type_of(last_data) in _LAST_TYPES

    def failed(self, envelope: bytes, events: int) -> bytes:
        error = _error_in(envelope)
        told = ErrorEvent(
            code=error.code, message=error.message, param=error.param, sequence_number=events
        )
        return data_event(msgspec.json.encode(told))


def _error_in(envelope: bytes) -> ErrorBody:
    """Read what a Worker has told, which may be anything."""
    try:
        return msgspec.json.decode(envelope, type=ErrorEnvelope).error
    except (msgspec.DecodeError, RecursionError):
        return ErrorBody("The answer could not be completed.", SERVER_ERROR)


def _type_of(data: bytes) -> str:
    try:
        return msgspec.json.decode(data, type=TypedEvent).type
    except (msgspec.DecodeError, RecursionError):
        return ""
