"""The messages of a chat request: roles, text or a list of text parts, and tool calls."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from meshnet_common.openai.errors import invalid_request, unsupported_value
from meshnet_common.openai.tools import check_function_name, read_arguments

MAX_ID_CHARACTERS = 256

# `developer` is the newer name of `system`; chat templates know the older one only.
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}

# Text parts are joined by a line end, as other servers do for templates that take one string.
_PART_SEPARATOR = "\n"


class CalledFunction(msgspec.Struct, frozen=True):
    """A function that was called, and with what."""

    name: str
    arguments: dict[str, Any]


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call in an earlier answer."""

    id: str
    type: str = "function"
    function: CalledFunction


Callers = Mapping[str, ToolCall]
"""The calls that the turns of tools which follow may answer, by id."""


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turn; `role` is system, user, assistant, or tool for what a call has given.

    Only an assistant's turn with calls may have None as content.
    """

    role: str
    content: str | None
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        return self.content or ""


class ContentPart(msgspec.Struct, frozen=True):
    """One part of a message's content as clients send it."""

    type: str
    text: str | None = None


class CalledFunctionBody(msgspec.Struct, frozen=True):
    """The function of a call as clients send it back: the arguments are JSON in a string."""

    name: str
    arguments: str


class ToolCallBody(msgspec.Struct, frozen=True, kw_only=True):
    """One call of an earlier answer as clients send it back."""

    id: Annotated[str, Meta(min_length=1, max_length=MAX_ID_CHARACTERS)]
    type: str = "function"
    function: CalledFunctionBody | None = None


class MessageBody(msgspec.Struct, frozen=True):
    """One message as clients send it."""

    role: str
    content: str | Annotated[list[ContentPart], Meta(min_length=1)] | UnsetType | None = UNSET
    name: Annotated[str, Meta(max_length=256)] | None = None
    tool_calls: list[ToolCallBody] | None = None
    tool_call_id: Annotated[str, Meta(max_length=MAX_ID_CHARACTERS)] | None = None
    function_call: dict[str, Any] | None = None
    audio: dict[str, Any] | None = None


def read_messages(messages: Iterable[MessageBody]) -> tuple[ChatMessage, ...]:
    """Check roles, content and calls; raises ApiError 400 with the place that is at fault."""
    read: list[ChatMessage] = []
    callers: Callers = {}
    for index, message in enumerate(messages):
        turn = _read_message(message, f"messages[{index}]", callers)
        if turn.role != "tool":
            callers = {call.id: call for call in turn.tool_calls}
        read.append(turn)
    return tuple(read)


def _read_message(message: MessageBody, place: str, callers: Callers) -> ChatMessage:
    _refuse_old_fields(message, place)
    role = _ROLES.get(message.role)
    if role is None:
        known = ", ".join(sorted(_ROLES))
        raise invalid_request(f"`{place}.role` must be one of {known}.", f"{place}.role")
    if message.tool_calls and role != "assistant":
        text = f"`{place}.tool_calls` is only allowed in a message of role `assistant`."
        raise invalid_request(text, f"{place}.tool_calls")
    calls = tuple(
        _read_call(call, f"{place}.tool_calls[{index}]")
        for index, call in enumerate(message.tool_calls or ())
    )
    if role == "tool":
        return _read_result(message, place, callers)
    is_silent = bool(calls) and (message.content is None or message.content is UNSET)
    content = None if is_silent else _read_content(message, place)
    return ChatMessage(role=role, content=content, name=message.name, tool_calls=calls)


def _refuse_old_fields(message: MessageBody, place: str) -> None:
    if message.role == "function":
        text = f"`{place}.role`: use role `tool` with `tool_call_id` instead of `function`."
        raise unsupported_value(f"{place}.role", text)
    if message.function_call:
        text = f"Use `{place}.tool_calls` instead of `function_call`."
        raise unsupported_value(f"{place}.function_call", text)
    if message.audio:
        text = "This release does not support `audio` in messages."
        raise unsupported_value(f"{place}.audio", text)


def _read_call(call: ToolCallBody, place: str) -> ToolCall:
    if call.type != "function":
        text = "This release supports only calls of type `function`."
        raise unsupported_value(f"{place}.type", text)
    place = f"{place}.function"
    if call.function is None:
        raise invalid_request(f"`{place}` is missing.", place)
    arguments = read_arguments(call.function.arguments)
    if arguments is None:
        text = f"`{place}.arguments` must be a JSON object in a string."
        raise invalid_request(text, f"{place}.arguments")
    name = check_function_name(call.function.name, f"{place}.name")
    return ToolCall(id=call.id, function=CalledFunction(name, arguments))


def _read_result(message: MessageBody, place: str, callers: Callers) -> ChatMessage:
    """Read what a call has given, and find the call: templates show its function's name."""
    place_of_id = f"{place}.tool_call_id"
    if message.tool_call_id is None:
        raise invalid_request(f"`{place_of_id}` is missing.", place_of_id)
    if not callers:
        text = f"`{place}`: a tool's message must follow a message with `tool_calls`."
        raise invalid_request(text, f"{place}.role")
    call = callers.get(message.tool_call_id)
    if call is None:
        text = f"`{place_of_id}` is the id of none of the `tool_calls` before it."
        raise invalid_request(text, place_of_id)
    return ChatMessage(
        role="tool",
        content=_read_content(message, place),
        name=message.name or call.function.name,
        tool_call_id=message.tool_call_id,
    )


def _read_content(message: MessageBody, place: str) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    if isinstance(content, UnsetType) or content is None:
        raise invalid_request(f"`{place}.content` is missing.", f"{place}.content")
    return _PART_SEPARATOR.join(
        _read_part(part, f"{place}.content[{index}]") for index, part in enumerate(content)
    )


def _read_part(part: ContentPart, place: str) -> str:
    if part.type != "text":
        text = "This release supports only parts of type `text`."
        raise unsupported_value(f"{place}.type", text)
    if part.text is None:
        raise invalid_request(f"`{place}.text` is missing.", f"{place}.text")
    return part.text
