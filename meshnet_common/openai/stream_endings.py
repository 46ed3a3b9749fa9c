"""How a stream ends for a client: when all was told, and when it fails after it began; pure."""

from dataclasses import dataclass
from typing import Protocol

from meshnet_common.openai.sse import DONE_EVENT, data_event


class StreamEnding(Protocol):
    """The last bytes of an API's streams."""

    @property
    def done(self) -> bytes:
        """What follows the last event of an answer."""

    def failed(self, envelope: bytes, events: int) -> bytes:
        """End with an error, behind so many events; `envelope` is an error answer's body."""


@dataclass(frozen=True, slots=True)
class DoneEnding:
    """Ends with `[DONE]`, also behind an error, which is an event like any other."""

    done: bytes = DONE_EVENT

    def failed(self, envelope: bytes, events: int) -> bytes:  # noqa: ARG002 - they are not counted
        return data_event(b" ".join(envelope.splitlines())) + DONE_EVENT
