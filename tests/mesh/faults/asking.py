"""Chat requests whose answers are known, and how a client saw what came of them.

An answer is read byte for byte from the wire, so that what an official client would forgive (a
second role, a stray comment, an event after the end) counts as wrong here.
"""

import http.client
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tests.mesh.faults.fault_mesh import MODEL
from tests.mesh.small_models import prompt_of, text_of

ANSWER_SECONDS = 100.0
"""Longer than any hold and any failover may take: who waits longer hangs."""
KEEP_ALIVE = ": keep-alive"
ACCEPTED = re.compile(r": accepted; queued position [0-9]+")
POSITION = re.compile(r": queued position [0-9]+")


@dataclass(frozen=True, slots=True)
class Ask:
    """One chat request; `seed` None asks greedily."""

    prompt_tokens: int
    tokens: int
    seed: int | None = None
    streamed: bool = True
    stop: str | None = None

    @property
    def body(self) -> dict[str, Any]:
        sampling = {"temperature": 0} if self.seed is None else {"seed": self.seed, "top_p": 0.95}
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": text_of(prompt_of(self.prompt_tokens))}],
            "max_tokens": self.tokens,
            **sampling,
        }
        if self.stop is not None:
            body["stop"] = self.stop
        if self.streamed:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body


@dataclass(frozen=True, slots=True)
class Answered:
    """The whole of an answer."""

    text: str
    finish_reason: str
    usage: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Refused:
    """A well-formed error instead of an answer, or at its end."""

    status: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Broken:
    """Something that is neither."""

    reason: str


@dataclass(frozen=True, slots=True)
class Hung:
    """Neither an answer nor an error in time."""


Outcome = Answered | Refused | Broken | Hung


class _BrokenError(Exception):
    """What came is not what a server of this API sends."""


@dataclass(slots=True)
class _Stream:
    """What has come of a streamed answer."""

    text: str = ""
    finish_reason: str = ""
    identity: tuple[str, int] | None = None
    is_accepted: bool = False
    has_role: bool = False
    usage: tuple[int, int, int] | None = None
    error: Refused | None = None
    is_done: bool = False

    def take(self, line: str) -> bool:
        """Take one line; answers whether it brought text."""
        if not line or line == KEEP_ALIVE or self._tells_to_wait(line):
            return False
        if self.is_done or not line.startswith("data: "):
            raise _BrokenError(f"unexpected line {line[:100]!r}")
        if line == "data: [DONE]":
            self.is_done = True
            return False
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            self.error = _refused(200, event)
            return False
        return self._take_chunk(event)

    def _tells_to_wait(self, line: str) -> bool:
        """Whether it is the one acknowledgement, or a place told after it, before all events."""
        if self.has_role or self.error is not None:
            return False
        if self.is_accepted:
            return POSITION.fullmatch(line) is not None
        self.is_accepted = ACCEPTED.fullmatch(line) is not None
        return self.is_accepted

    def _take_chunk(self, event: dict[str, Any]) -> bool:
        identity = (event["id"], event["created"])
        if self.identity not in {None, identity}:
            raise _BrokenError(f"{self.identity} became {identity}")
        self.identity = identity
        if not event["choices"]:
            if self.usage is not None:
                raise _BrokenError("usage came twice")
            self.usage = _usage(event)
            return False
        (choice,) = event["choices"]
        return self._take_choice(choice["delta"], choice["finish_reason"])

    def _take_choice(self, delta: dict[str, Any], finish_reason: str | None) -> bool:
        if self.finish_reason:
            raise _BrokenError("something came after the answer's end")
        if "role" in delta:
            if self.has_role:
                raise _BrokenError("the role came twice")
            self.has_role = True
        self.finish_reason = finish_reason or ""
        text = delta.get("content") or ""
        self.text += text
        return bool(text)

    def outcome(self) -> Outcome:
        if self.error is not None:
            return self.error
        if not (self.is_done and self.has_role and self.finish_reason and self.usage):
            return Broken(f"the stream ended early, after {len(self.text)} characters")
        return Answered(self.text, self.finish_reason, self.usage)


@dataclass(slots=True)
class Asking:
    """One request under way in a thread of its own."""

    url: str
    ask: Ask
    outcome: Outcome | None = None
    texts_seen: int = 0
    """How many events with text have come."""
    stall_seconds: float = 0.0
    """The longest time without text, the request's own beginning included."""
    seconds: float = 0.0
    _news: threading.Condition = field(default_factory=threading.Condition)
    _thread: threading.Thread | None = None

    def start(self) -> "Asking":
        self._thread = threading.Thread(target=self.run, daemon=True)
        self._thread.start()
        return self

    def result(self, seconds: float = ANSWER_SECONDS + 5) -> Outcome:
        """Wait until it has ended."""
        assert self._thread is not None
        self._thread.join(seconds)
        return self.outcome or Hung()

    def wait_for_texts(self, count: int, seconds: float) -> bool:
        """Wait until so many events with text have come; False if it ended, or took too long."""

        def is_reached() -> bool:
            return self.outcome is not None or self.texts_seen >= count

        with self._news:
            return self._news.wait_for(is_reached, seconds) and self.outcome is None

    def run(self) -> None:
        began = time.monotonic()
        try:
            outcome = self._ask(began)
        except TimeoutError:
            outcome = Hung()
        except (OSError, http.client.HTTPException, _BrokenError, ValueError, KeyError) as error:
            outcome = Broken(f"{type(error).__name__}: {error}")
        self.seconds = time.monotonic() - began
        with self._news:
            self.outcome = outcome
            self._news.notify_all()

    def _ask(self, began: float) -> Outcome:
        where = urlsplit(self.url)
        connection = http.client.HTTPConnection(where.netloc, timeout=ANSWER_SECONDS)
        try:
            headers = {"content-type": "application/json"}
            body = json.dumps(self.ask.body)
            connection.request("POST", "/v1/chat/completions", body, headers)
            response = connection.getresponse()
            if response.status == 200 and self.ask.streamed:
                be_patient = _patience(connection, began + ANSWER_SECONDS)
                return self._read_stream(response, began, be_patient)
            return _whole(response.status, json.loads(response.read()))
        finally:
            connection.close()

    def _read_stream(
        self, response: http.client.HTTPResponse, began: float, be_patient: Callable[[], None]
    ) -> Outcome:
        stream = _Stream()
        last = began
        while line := response.readline():
            be_patient()
            if stream.take(line.decode().rstrip("\r\n")):
                now = time.monotonic()
                self.stall_seconds = max(self.stall_seconds, now - last)
                last = now
                with self._news:
                    self.texts_seen += 1
                    self._news.notify_all()
        return stream.outcome()


def _patience(connection: http.client.HTTPConnection, deadline: float) -> Callable[[], None]:
    """Make a function that raises TimeoutError past the deadline, however much still comes."""

    def be_patient() -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if connection.sock is not None:
            connection.sock.settimeout(left)

    return be_patient


def _whole(status: int, answer: dict[str, Any]) -> Outcome:
    if "error" in answer:
        return _refused(status, answer)
    (choice,) = answer["choices"]
    return Answered(choice["message"]["content"], choice["finish_reason"], _usage(answer))


def _refused(status: int, answer: dict[str, Any]) -> Refused:
    error = answer["error"]
    if not error.keys() >= {"message", "type", "param", "code"}:
        raise _BrokenError(f"{error} is no error of this API")
    return Refused(status, error["code"] or "", error["message"])


def _usage(answer: dict[str, Any]) -> tuple[int, int, int]:
    usage = answer["usage"]
    return usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]
