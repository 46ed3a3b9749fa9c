"""From the bytes of a Responses request to what a Head Worker needs, every rule checked; pure.

Nothing is stored: who goes on with a conversation sends all of it. Tools and formats are written
flatter here than in chat, and mean the same.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
from msgspec import Meta

from meshnet_common.openai.errors import ApiError, ErrorBody, invalid_request, unsupported_value
from meshnet_common.openai.formats import (
    JsonSchemaBody,
    ResponseFormat,
    ResponseFormatBody,
    read_response_format,
)
from meshnet_common.openai.generation_options import GenerationFields, read_generation_options
from meshnet_common.openai.json_body import decode_body
from meshnet_common.openai.requests import ChatRequest
from meshnet_common.openai.response_items import InputItem, read_input
from meshnet_common.openai.tools import NO_TOOLS, FunctionBody, ToolBody, ToolUse, read_tool_use

_Name = Annotated[str, Meta(min_length=1, max_length=256)]
_Read = TypeVar("_Read")
_PLACES = (
    (".function", ""),
    (".json_schema", ""),
    ("tool_choice.allowed_tools", "tool_choice"),
)
# A choice may be an object, which no set takes.
_OPEN_CHOICES = (None, "auto", "none")


class FlatTool(msgspec.Struct, frozen=True):
    """One tool as clients send it."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FlatFormat(msgspec.Struct, frozen=True):
    """The field `text.format` as clients send it."""

    type: str = "text"
    name: str | None = None
    schema: Any = None
    strict: bool | None = None
    description: str | None = None


class TextOptions(msgspec.Struct, frozen=True):
    """The field `text` as clients send it."""

    format: FlatFormat | None = None
    verbosity: str | None = None


class ResponseBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body as clients send it: OpenAI's names, types and bounds; null means absent."""

    model: _Name
    input: str | list[InputItem]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    tools: list[FlatTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    stream: bool | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=16)] | None = None
    user: str | None = None
    # Read only to be refused, unless they ask for what happens anyway.
    previous_response_id: str | None = None
    stored_turns: str | dict[str, Any] | None = msgspec.field(default=None, name="conversation")
    store: bool | None = None
    background: bool | None = None
    reasoning: dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    truncation: str | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


class ResponseRequest(ChatRequest, frozen=True, kw_only=True):
    """A Responses request after validation."""

    ID_PREFIX: ClassVar[str] = "resp_"
    PROMPT_FIELD: ClassVar[str] = "input"
    FORMAT_FIELD: ClassVar[str] = "text.format"

    body: ResponseBody
    """What every answer repeats of it."""


def parse_response_request(body: bytes) -> ResponseRequest:
    """Check the whole body of `POST /v1/responses`; raises ApiError 400, nothing else."""
    fields = decode_body(body, ResponseBody)
    _refuse_others(fields)
    options = GenerationFields(temperature=fields.temperature, top_p=fields.top_p)
    return ResponseRequest(
        model=fields.model,
        messages=tuple(read_input(fields.input, fields.instructions)),
        stream=bool(fields.stream),
        # It is the last event of each stream that tells it.
        include_usage=bool(fields.stream),
        tool_use=_flatly(lambda: _read_tools(fields)),
        response_format=_flatly(lambda: _read_format(fields.text)),
        body=fields,
        **msgspec.structs.asdict(read_generation_options(options, fields.max_output_tokens)),
    )


def _refuse_others(fields: ResponseBody) -> None:
    asked = {
        "previous_response_id": fields.previous_response_id is not None,
        "conversation": fields.stored_turns is not None,
        "store": bool(fields.store),
        "background": bool(fields.background),
        "reasoning": any(value is not None for value in (fields.reasoning or {}).values()),
        "prompt": fields.prompt is not None,
        "truncation": fields.truncation not in {None, "disabled"},
        "include": any("logprobs" in one for one in fields.include or ()),
        "top_logprobs": bool(fields.top_logprobs),
    }
    for param, is_asked in asked.items():
        if is_asked:
            text = f"This release does not support this value of `{param}`: it stores nothing."
            raise unsupported_value(param, text)


def _read_tools(fields: ResponseBody) -> ToolUse:
    choice = _nested_choice(fields.tool_choice)
    if not fields.tools:
        return NO_TOOLS if choice in _OPEN_CHOICES else read_tool_use(None, choice, None)
    tools = [_nested_tool(tool, f"tools[{place}]") for place, tool in enumerate(fields.tools)]
    return read_tool_use(tools, choice, fields.parallel_tool_calls)


def _nested_tool(tool: FlatTool, place: str) -> ToolBody:
    if tool.type != "function":
        return ToolBody(tool.type)
    if tool.name is None:
        raise invalid_request(f"`{place}.name` is missing.", f"{place}.name")
    function = FunctionBody(tool.name, tool.description, tool.parameters, tool.strict)
    return ToolBody(tool.type, function)


def _nested_choice(choice: str | Mapping[str, Any] | None) -> str | dict[str, Any] | None:
    if choice is None or isinstance(choice, str):
        return choice
    if choice.get("type") != "allowed_tools":
        return dict(_nested_entry(choice))
    tools = choice.get("tools")
    if isinstance(tools, list):
        tools = [_nested_entry(tool) for tool in tools]
    allowed = {"mode": choice.get("mode"), "tools": tools}
    return {"type": "allowed_tools", "allowed_tools": allowed}


def _nested_entry(entry: Any) -> Any:
    match entry:
        case {"type": "function", "name": str(name)}:
            return {"type": "function", "function": {"name": name}}
        case _:
            return entry


def _read_format(text: TextOptions | None) -> ResponseFormat:
    if text is None or text.format is None:
        return read_response_format(None)
    given = text.format
    schema = JsonSchemaBody(given.name, given.schema, given.strict, given.description)
    return read_response_format(ResponseFormatBody(given.type, schema), "text.format")


def _flatly(read: Callable[[], _Read]) -> _Read:
    """Name the place of a fault as it is in the flat body."""
    try:
        return read()
    except ApiError as error:
        body = error.body
        message, place = body.message, body.param or ""
        for nested, flat in _PLACES:
            message, place = message.replace(nested, flat), place.replace(nested, flat)
        told = ErrorBody(message, body.type, place or None, body.code)
        raise ApiError(error.status, told, error.headers) from error
