"""Looks at an answer on its way: how quick it is, and whether it is one that may go on.

Nothing is changed and nothing held up: of a stream only its events are counted as they pass.
"""

import base64
import binascii
from collections.abc import Callable

import msgspec

from meshnet_common.edge.clock import Clock
from meshnet_common.edge.forwarding import (
    UpstreamError,
    UpstreamRefusedError,
    UpstreamUnreachableError,
    WholeAnswer,
)
from meshnet_common.openai.errors import ErrorEnvelope
from meshnet_gateway.answering.asked import Asked
from meshnet_gateway.limits.pace import ChatPace, EmbeddingPace, Pace

BYTES_PER_TOKEN = 4
"""Of a prompt whose tokens nobody has counted."""

# Another Endpoint may do better; the client's own limits and faults are nobody's to mend.
NO_WAY = 508
_FAILED_STATUSES = frozenset({500, 504, NO_WAY})
_OWN_LIMITS = frozenset({"rate_limit_exceeded", "insufficient_quota"})

_DATA = b"data:"

FLOAT_BYTES = 4


class NotServedError(UpstreamError):
    """The Endpoint serves this model no more."""


class PromptDetails(msgspec.Struct, frozen=True):
    """What more an upstream says of a prompt."""

    cached_tokens: int | None = None


class TokenCounts(msgspec.Struct, frozen=True):
    """What is known by these names in every API."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    input_tokens_details: PromptDetails | None = None

    @property
    def kept_tokens(self) -> int:
        """Of the prompt, those that the upstream had kept from before."""
        details = self.prompt_tokens_details or self.input_tokens_details
        return (details.cached_tokens or 0) if details is not None else 0


class Counted(msgspec.Struct, frozen=True):
    """All that is read of an answer or an event."""

    usage: TokenCounts | None = None


class Vector(msgspec.Struct, frozen=True):
    """One embedding: numbers, or their bytes in base64; there may be millions, and none is read."""

    embedding: msgspec.Raw


class Embedded(msgspec.Struct, frozen=True):
    """All that is read of an answer to find its dimensions."""

    data: list[Vector]


def knows_no_way(error: UpstreamError) -> bool:
    """Tell whether an upstream neither has the model nor knows who might."""
    is_loop = isinstance(error, UpstreamRefusedError) and error.refusal.status == NO_WAY
    return is_loop or isinstance(error, NotServedError)


def is_blamed(error: UpstreamError) -> bool:
    """Tell whether a Mesh says that several of its Workers fell over this very request."""
    if not isinstance(error, UpstreamRefusedError):
        return False
    wants_no_other_try = error.refusal.headers.get("x-should-retry") == "false"
    return wants_no_other_try and _code_of(error.refusal) == "upstream_failed"


def nothing() -> None:
    """Do nothing about an answer that begins."""


def any_dimensions(_dimensions: int) -> bool:
    """Let an embedding have any."""
    return True


def dimensions_of(body: bytes) -> int | None:
    """Count the dimensions of the first embedding; 0 for what is none, None for an empty list."""
    try:
        vectors = msgspec.json.decode(body, type=Embedded).data
        if not vectors:
            return None
        first = bytes(vectors[0].embedding)
        if first.startswith(b"["):
            inner = first[1:-1].strip()
            return first.count(b",") + 1 if inner and not inner.startswith(b"[") else 0
        return len(base64.b64decode(first.strip(b'"'), validate=True)) // FLOAT_BYTES
    except (msgspec.DecodeError, RecursionError, binascii.Error):
        return 0


class Sampler:
    """Sees one attempt, which is sent now."""

    def __init__(
        self,
        asked: Asked,
        clock: Clock,
        fits: Callable[[int], bool] = any_dimensions,
        on_answer: Callable[[], None] = nothing,
    ) -> None:
        self._asked = asked
        self._clock = clock
        self._began = self.heard_at = clock.now()
        """When the upstream has said something last, if only that it lives."""
        self._fits = fits
        self._on_answer = on_answer
        self._events = 0
        self._first_seconds = 0.0
        self._last_seconds = 0.0
        self._counting = b""

    @property
    def has_begun(self) -> bool:
        """Whether some of the answer was passed on, after which nobody else can give it."""
        return self._events > 0

    def saw_events(self, data: bytes) -> None:
        self.heard_at = self._clock.now()
        events = data.startswith(_DATA) + data.count(b"\n" + _DATA)
        if not events:
            return
        self._last_seconds = self.heard_at - self._began
        if not self._events:
            self._first_seconds = self._last_seconds
            self._on_answer()
        self._events += events
        if b'"usage"' in data:
            self._counting = data

    def saw_whole(self, answer: WholeAnswer) -> None:
        self._last_seconds = self._clock.now() - self._began
        if answer.status == 404 and self._is_about_the_model(answer):
            raise NotServedError(f"It does not know the model {self._asked.model!r}.")
        if answer.status in _FAILED_STATUSES or _lacks_room(answer):
            raise UpstreamRefusedError(answer)
        if 300 <= answer.status < 400:
            raise UpstreamUnreachableError("It points elsewhere.")
        if answer.status == 200:
            self._counting = answer.body
            if not answer.body.lstrip().startswith(b"{") or _counts(answer.body) is None:
                raise UpstreamUnreachableError("Its answer is no JSON object.")
            self._check_dimensions(answer.body)

    def _is_about_the_model(self, answer: WholeAnswer) -> bool:
        # Others word it in their own way; a name may be spelt otherwise inside of a message.
        is_ours = _code_of(answer) == "model_not_found"
        return is_ours or self._asked.model.encode() in answer.body

    def _check_dimensions(self, body: bytes) -> None:
        if self._fits is any_dimensions:
            return
        dimensions = dimensions_of(body)
        if dimensions is not None and not (dimensions and self._fits(dimensions)):
            raise UpstreamUnreachableError("Its embedding has other dimensions.")

    def pace(self) -> Pace | None:
        """Say how quick the answer was that has been seen to its end; None for no tokens."""
        counts = self._told_counts()
        guess = len(self._asked.body) // BYTES_PER_TOKEN
        prompt = counts.prompt_tokens or counts.input_tokens or guess
        if self._asked.is_embedding:
            return EmbeddingPace(prompt, self._last_seconds)
        answer = counts.completion_tokens or counts.output_tokens or self._events
        if not answer:
            return None
        new = max(0, prompt - counts.kept_tokens)
        return ChatPace(new, answer, self._first_seconds, self._last_seconds)

    def _told_counts(self) -> TokenCounts:
        lines = [line[len(_DATA) :] for line in self._counting.splitlines() if line[:5] == _DATA]
        for text in reversed(lines or [self._counting]):
            if (counted := _counts(text)) is not None and counted.usage is not None:
                return counted.usage
        return TokenCounts()


def _counts(text: bytes) -> Counted | None:
    try:
        return msgspec.json.decode(text, type=Counted)
    except msgspec.ValidationError:
        return Counted()
    except (msgspec.DecodeError, RecursionError):
        return None


def _lacks_room(answer: WholeAnswer) -> bool:
    """Tell a want of capacity from a limit of the client's own."""
    return answer.status == 429 and _code_of(answer) not in _OWN_LIMITS


def _code_of(answer: WholeAnswer) -> str | None:
    try:
        return msgspec.json.decode(answer.body, type=ErrorEnvelope).error.code
    except (msgspec.DecodeError, RecursionError):
        return None
