"""The tools of a chat request: what a model is offered, and which calls it must make.

A request's `tools`, `tool_choice` and `parallel_tool_calls` become one `ToolUse`, or an ApiError
400 that names the field. Which prompt and which text in the answer a call is, the model decides
(`meshnet_worker.text`); here are only the public names and shapes.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from meshnet_common.openai.errors import invalid_request, unsupported_value
from meshnet_common.openai.json_schemas import read_schema

MAX_TOOLS = 128
MAX_DESCRIPTION_CHARACTERS = 1 << 16
MAX_HELD_BYTES = 128 << 10
"""All schemas together that calls are held to: reading them takes a tenth of a second then."""
FUNCTION_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

_CHOICES = "none, auto, required, or an object that names one function"
_ID_CHARACTERS = 24
# What may allow properties besides those that a schema lists.
_OPENINGS = frozenset(
    {"additionalProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf"}
)


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True):
    """One function that a model may call; `parameters` is a JSON schema of an object."""

    name: str
    description: str | None = None
    parameters: dict[str, Any]
    strict: bool = False
    held_to: dict[str, Any] | None = None
    """The schema that masks hold the arguments to; None: they may be any object."""

    def shown(self) -> dict[str, Any]:
        """What a chat template is given, as clients write it."""
        described = {} if self.description is None else {"description": self.description}
        function = {"name": self.name, **described, "parameters": self.parameters}
        return {"type": "function", "function": function}


class ToolUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a request says of tools; without any on offer an answer is text and nothing else."""

    offered: tuple[FunctionTool, ...] = ()
    must_call: tuple[str, ...] = ()
    """The answer is a call of one of these functions; none: the model decides."""
    is_parallel: bool = True
    """Whether one answer may hold several calls."""

    @property
    def is_forced(self) -> bool:
        return bool(self.must_call)

    @property
    def callable_now(self) -> tuple[FunctionTool, ...]:
        """The functions that the answer may call."""
        if not self.must_call:
            return self.offered
        return tuple(tool for tool in self.offered if tool.name in self.must_call)


NO_TOOLS = ToolUse()


class FunctionBody(msgspec.Struct, frozen=True):
    """A tool's function as clients send it."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(msgspec.Struct, frozen=True):
    """One tool as clients send it."""

    type: str
    function: FunctionBody | None = None


def read_tool_use(
    tools: Sequence[ToolBody] | None,
    choice: str | Mapping[str, Any] | None,
    is_parallel: bool | None,
) -> ToolUse:
    """Check the three fields together; raises ApiError 400."""
    if tools is None:
        if choice is not None:
            raise invalid_request("`tool_choice` is only allowed with `tools`.", "tool_choice")
        return NO_TOOLS
    offered = _read_tools(tools)
    use = _chosen(ToolUse(offered=offered), "auto" if choice is None else choice)
    # Who must call and may call again does so for ever, if small: that takes a clear word.
    is_parallel = is_parallel is True if use.is_forced else is_parallel is not False
    use = msgspec.structs.replace(use, is_parallel=use.is_parallel and is_parallel)
    return _held(use, offered)


def call_id(answer_id: str, choice: int, index: int) -> str:
    """Name one call; whoever tells the same answer gives it the same id."""
    digest = hashlib.sha256(f"{answer_id} {choice} {index}".encode()).hexdigest()
    return f"call_{digest[:_ID_CHARACTERS]}"


def read_arguments(text: str) -> dict[str, Any] | None:
    """Read the arguments of a call; "null" and nothing mean no arguments, None no object at all."""
    if text.strip() in {"", "null"}:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


def check_function_name(name: str, place: str) -> str:
    """Return a function's name if it is one; raises ApiError 400 that names its place."""
    if FUNCTION_NAME.fullmatch(name) is None:
        text = f"`{place}` must be 1 to 64 letters, digits, underscores and hyphens."
        raise invalid_request(text, place)
    return name


def _read_tools(tools: Sequence[ToolBody]) -> tuple[FunctionTool, ...]:
    if not tools:
        raise invalid_request("`tools` must not be an empty list; leave it out.", "tools")
    if len(tools) > MAX_TOOLS:
        raise invalid_request(f"`tools` has more than {MAX_TOOLS} tools.", "tools")
    offered = tuple(_read_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools))
    seen: set[str] = set()
    for index, tool in enumerate(offered):
        if tool.name in seen:
            place = f"tools[{index}].function.name"
            raise invalid_request(f"`{place}` is the name of an earlier tool too.", place)
        seen.add(tool.name)
    return offered


def _read_tool(tool: ToolBody, place: str) -> FunctionTool:
    if tool.type != "function":
        text = "This release supports only tools of type `function`."
        raise unsupported_value(f"{place}.type", text)
    function = tool.function
    place = f"{place}.function"
    if function is None:
        raise invalid_request(f"`{place}` is missing.", place)
    if function.description and len(function.description) > MAX_DESCRIPTION_CHARACTERS:
        text = f"`{place}.description` is over {MAX_DESCRIPTION_CHARACTERS} characters."
        raise invalid_request(text, f"{place}.description")
    return FunctionTool(
        name=check_function_name(function.name, f"{place}.name"),
        description=function.description,
        parameters=_read_parameters(function.parameters, f"{place}.parameters"),
        strict=bool(function.strict),
    )


def _read_parameters(schema: dict[str, Any] | None, place: str) -> dict[str, Any]:
    if schema is None:
        return {"type": "object", "properties": {}}
    if schema.get("type", "object") != "object":
        raise invalid_request(f"`{place}` must be a schema of type `object`.", f"{place}.type")
    return schema


def _chosen(use: ToolUse, choice: str | Mapping[str, Any]) -> ToolUse:
    names = tuple(tool.name for tool in use.offered)
    match choice:
        case "none":
            return NO_TOOLS
        case "auto":
            return use
        case "required":
            return msgspec.structs.replace(use, must_call=names)
        case {"type": "function", "function": {"name": str(name)}}:
            _check_offered(name, names, "tool_choice.function.name")
            # One call, since it is that one which was asked for.
            return msgspec.structs.replace(use, must_call=(name,), is_parallel=False)
        case {"type": "allowed_tools", "allowed_tools": dict(allowed)}:
            return _chosen(_narrowed(use, allowed.get("tools")), _mode(allowed.get("mode")))
        case _:
            raise invalid_request(f"`tool_choice` must be {_CHOICES}.", "tool_choice")


def _held(use: ToolUse, all_tools: Sequence[FunctionTool]) -> ToolUse:
    """Add the schemas of calls that must keep to them."""
    held = [
        (tool, f"tools[{index}].function.parameters")
        for index, tool in enumerate(all_tools)
        if tool.name in use.must_call or (tool.strict and tool in use.callable_now)
    ]
    if sum(len(msgspec.json.encode(tool.parameters)) for tool, _ in held) > MAX_HELD_BYTES:
        text = f"The `parameters` that calls must match are over {MAX_HELD_BYTES} bytes in all."
        raise invalid_request(text, "tools")
    kept = {tool.name: _schema_of(tool, place) for tool, place in held}
    offered = tuple(
        msgspec.structs.replace(tool, held_to=kept.get(tool.name)) for tool in use.offered
    )
    return msgspec.structs.replace(use, offered=offered)


def _schema_of(tool: FunctionTool, place: str) -> dict[str, Any]:
    schema = {"type": "object", **read_schema(tool.parameters, place)}
    # A function takes nothing that its schema does not describe, unless that is said.
    if "properties" in schema and not schema.keys() & _OPENINGS:
        schema["additionalProperties"] = False
    return schema


def _narrowed(use: ToolUse, allowed: object) -> ToolUse:
    place = "tool_choice.allowed_tools.tools"
    if not isinstance(allowed, list) or not allowed:
        raise invalid_request(f"`{place}` must be a list that names functions.", place)
    names = tuple(tool.name for tool in use.offered)
    wanted: set[str] = set()
    for index, entry in enumerate(allowed):
        match entry:
            case {"type": "function", "function": {"name": str(name)}}:
                _check_offered(name, names, f"{place}[{index}].function.name")
                wanted.add(name)
            case _:
                raise invalid_request(f"`{place}[{index}]` names no function.", f"{place}[{index}]")
    kept = tuple(tool for tool in use.offered if tool.name in wanted)
    return msgspec.structs.replace(use, offered=kept)


def _mode(mode: object) -> str:
    if mode in ("auto", "required"):
        return str(mode)
    place = "tool_choice.allowed_tools.mode"
    raise invalid_request(f"`{place}` must be auto or required.", place)


def _check_offered(name: str, names: Sequence[str], place: str) -> None:
    if name not in names:
        raise invalid_request(f"`{place}` is the name of none of the `tools`.", place)
