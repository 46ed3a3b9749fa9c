"""The input of a Responses request, a text or items, read as messages of a chat; pure.

Calls of one turn, and a message before them, are one assistant's message: that is how chat
templates know them.
"""

from collections.abc import Sequence

import msgspec

from meshnet_common.openai.errors import invalid_request, unsupported_value
from meshnet_common.openai.messages import CalledFunction, ChatMessage, ToolCall
from meshnet_common.openai.tools import check_function_name, read_arguments

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEXT_PARTS = frozenset({"input_text", "output_text"})
_PART_SEPARATOR = "\n"


class InputPart(msgspec.Struct, frozen=True):
    """One part of an item's content as clients send it."""

    type: str
    text: str | None = None


class InputItem(msgspec.Struct, frozen=True, kw_only=True):
    """One item as clients send it: a message, a function call, or what a call has given."""

    type: str | None = None
    role: str | None = None
    content: str | list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None


def read_input(given: str | Sequence[InputItem], instructions: str | None) -> list[ChatMessage]:
    """Read the whole conversation; raises ApiError 400 with the place that is at fault."""
    messages = [ChatMessage(role="system", content=instructions)] if instructions else []
    if not given:
        raise invalid_request("`input` must not be empty.", "input")
    if isinstance(given, str):
        return [*messages, ChatMessage(role="user", content=given)]
    for place, item in enumerate(given):
        _read_item(item, f"input[{place}]", messages)
    return messages


def _read_item(item: InputItem, place: str, messages: list[ChatMessage]) -> None:
    match item.type:
        case None | "message":
            messages.append(_read_message(item, place))
        case "function_call":
            _add_call(_read_call(item, place), messages)
        case "function_call_output":
            messages.append(_read_result(item, place, messages))
        case _:
            text = "This release supports only messages, function calls and their outputs."
            raise unsupported_value(f"{place}.type", text)


def _read_message(item: InputItem, place: str) -> ChatMessage:
    role = _ROLES.get(item.role or "")
    if role is None:
        known = ", ".join(sorted(_ROLES))
        raise invalid_request(f"`{place}.role` must be one of {known}.", f"{place}.role")
    return ChatMessage(role=role, content=_read_text(item.content, f"{place}.content"))


def _read_call(item: InputItem, place: str) -> ToolCall:
    arguments = read_arguments(_given(item.arguments, f"{place}.arguments"))
    if arguments is None:
        text = f"`{place}.arguments` must be a JSON object in a string."
        raise invalid_request(text, f"{place}.arguments")
    name = check_function_name(_given(item.name, f"{place}.name"), f"{place}.name")
    call_id = _given(item.call_id, f"{place}.call_id")
    return ToolCall(id=call_id, function=CalledFunction(name, arguments))


def _add_call(call: ToolCall, messages: list[ChatMessage]) -> None:
    last = messages[-1] if messages else None
    if last is None or last.role != "assistant":
        messages.append(ChatMessage(role="assistant", content=None, tool_calls=(call,)))
    else:
        messages[-1] = msgspec.structs.replace(last, tool_calls=(*last.tool_calls, call))


def _read_result(item: InputItem, place: str, messages: Sequence[ChatMessage]) -> ChatMessage:
    call_id = _given(item.call_id, f"{place}.call_id")
    calls = (call for message in reversed(messages) for call in message.tool_calls)
    call = next((call for call in calls if call.id == call_id), None)
    if call is None:
        text = f"`{place}.call_id` is that of no function call before it."
        raise invalid_request(text, f"{place}.call_id")
    return ChatMessage(
        role="tool",
        content=_read_text(item.output, f"{place}.output"),
        name=call.function.name,
        tool_call_id=call_id,
    )


def _read_text(content: str | Sequence[InputPart] | None, place: str) -> str:
    if isinstance(content, str):
        return content
    if not content:
        raise invalid_request(f"`{place}` is missing or empty.", place)
    return _PART_SEPARATOR.join(
        _read_part(part, f"{place}[{index}]") for index, part in enumerate(content)
    )


def _read_part(part: InputPart, place: str) -> str:
    if part.type not in _TEXT_PARTS:
        text = "This release supports only parts of type `input_text` and `output_text`."
        raise unsupported_value(f"{place}.type", text)
    return _given(part.text, f"{place}.text")


def _given(value: str | None, place: str) -> str:
    if value is None:
        raise invalid_request(f"`{place}` is missing.", place)
    return value
