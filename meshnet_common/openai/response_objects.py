"""What an answer of the Responses API is made of, and the events that tell it; pure."""

from typing import Any

import msgspec


class OutputText(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a message."""

    type: str = "output_text"
    text: str
    annotations: tuple[str, ...] = ()
    logprobs: tuple[str, ...] = ()


class OutputMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One item of an answer: a message."""

    id: str
    type: str = "message"
    status: str
    role: str = "assistant"
    content: tuple[OutputText, ...]


class OutputCall(msgspec.Struct, frozen=True, kw_only=True):
    """One item of an answer: a call of a function."""

    id: str
    type: str = "function_call"
    status: str
    call_id: str
    name: str
    arguments: str


OutputItem = OutputMessage | OutputCall


class InputDetails(msgspec.Struct, frozen=True):
    """Of the tokens of a prompt."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct, frozen=True):
    """Of the tokens of an answer."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of one answer."""

    input_tokens: int
    input_tokens_details: InputDetails = InputDetails()
    output_tokens: int
    output_tokens_details: OutputDetails = OutputDetails()
    total_tokens: int


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why an answer is not complete."""

    reason: str


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """The whole body of an answer, with what was asked for."""

    id: str
    object: str = "response"
    created_at: int
    status: str
    background: bool = False
    error: None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[Any]
    parallel_tool_calls: bool
    previous_response_id: None = None
    reasoning: None = None
    store: bool = False
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_p: float
    truncation: str = "disabled"
    usage: ResponseUsage | None = None
    user: str | None
    metadata: dict[str, str]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One event; each has the next number."""

    type: str
    sequence_number: int


class ResponseEvent(Event, frozen=True, kw_only=True):
    """What has become of the whole answer."""

    response: Response


class ItemEvent(Event, frozen=True, kw_only=True):
    """An item begins or ends."""

    output_index: int
    item: OutputItem


class PartEvent(Event, frozen=True, kw_only=True):
    """The only part of a message begins or ends."""

    item_id: str
    output_index: int
    content_index: int = 0
    part: OutputText


class TextDelta(Event, frozen=True, kw_only=True):
    """More text of a message."""

    item_id: str
    output_index: int
    content_index: int = 0
    delta: str
    logprobs: tuple[str, ...] = ()


class TextDone(Event, frozen=True, kw_only=True):
    """All text of a message."""

    item_id: str
    output_index: int
    content_index: int = 0
    text: str
    logprobs: tuple[str, ...] = ()


class ArgumentsDelta(Event, frozen=True, kw_only=True):
    """More of a call's arguments."""

    item_id: str
    output_index: int
    delta: str


class ArgumentsDone(Event, frozen=True, kw_only=True):
    """All arguments of a call."""

    item_id: str
    output_index: int
    arguments: str
    name: str
