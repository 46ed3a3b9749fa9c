"""The messages of a chat request: roles, and content that is a string or a list of text parts."""

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from meshnet_common.openai.errors import invalid_request, unsupported_value

# `developer` is the newer name of `system`; chat templates know the older one only.
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TOOL_ROLES = frozenset({"tool", "function"})

# Text parts are joined by a line end, as other servers do for templates that take one string.
_PART_SEPARATOR = "\n"


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turn; `role` is system, user or assistant."""

    role: str
    content: str
    name: str | None = None


class ContentPart(msgspec.Struct, frozen=True):
    """One part of a message's content as clients send it."""

    type: str
    text: str | None = None


class MessageBody(msgspec.Struct, frozen=True):
    """One message as clients send it."""

    role: str
    content: str | Annotated[list[ContentPart], Meta(min_length=1)] | UnsetType | None = UNSET
    name: Annotated[str, Meta(max_length=256)] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    function_call: dict[str, Any] | None = None
    audio: dict[str, Any] | None = None


def read_messages(messages: Iterable[MessageBody]) -> tuple[ChatMessage, ...]:
    """Check roles and content; raises ApiError 400 with the place of the message at fault."""
    return tuple(
        _read_message(message, f"messages[{index}]") for index, message in enumerate(messages)
    )


def _read_message(message: MessageBody, place: str) -> ChatMessage:
    if message.role in _TOOL_ROLES:
        raise unsupported_value(f"{place}.role", "This release does not support tool messages.")
    role = _ROLES.get(message.role)
    if role is None:
        known = ", ".join(sorted(_ROLES))
        raise invalid_request(f"`{place}.role` must be one of {known}.", f"{place}.role")
    for field in ("tool_calls", "function_call", "audio"):
        if getattr(message, field):
            text = f"This release does not support `{field}` in messages."
            raise unsupported_value(f"{place}.{field}", text)
    return ChatMessage(role=role, content=_read_content(message, place), name=message.name)


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
