"""Shows a model the tools that it may call, and what came of earlier calls.

A template that knows tools gets them as transformers would give them. All other models are told in
a system turn how to call, in the style that many models were trained on (Hermes), and earlier calls
and results become text in the same style.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

import msgspec

from meshnet_common.openai.messages import ChatMessage, ToolCall
from meshnet_common.openai.tools import ToolUse
from meshnet_worker.text.call_styles import HERMES, CallStyle
from meshnet_worker.text.template_probe import (
    Render,
    ToolTemplate,
    probe_tools,
    takes_system_turns,
)

_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")
_INSTRUCTIONS = """\
You can call functions. Each line between <tools> and </tools> describes one, its parameters by a \
JSON schema:
<tools>
{tools}
</tools>
To call a function, write its name and its arguments as JSON between two markers:
<tool_call>
{{"name": "the function's name", "arguments": {{"a parameter's name": "its value"}}}}
</tool_call>
{several}What a call gives comes back between <tool_response> and </tool_response>."""
_SEVERAL = "To make several calls, write one such block for each. "
_ONE = "Make one call at most. "


class ToolPrompts:
    """How one model's prompts are written.

    What its templates do with tools is found out when somebody uses tools: until then a template
    that takes for ever does so in no other request.
    """

    def __init__(self, render: Render, render_with_tools: Render | None = None) -> None:
        self.render = render
        # Some models have another template for tools.
        self._render_with_tools = render_with_tools or render

    @cached_property
    def template(self) -> ToolTemplate | None:
        """None for a model that knows no tools, or writes calls in no style known here."""
        return probe_tools(self._render_with_tools)

    @property
    def style(self) -> CallStyle:
        """How the model writes calls."""
        return HERMES if self.template is None else self.template.style

    def prompt(self, messages: Sequence[ChatMessage], use: ToolUse) -> str:
        """Write the whole prompt; raises ApiError 400 if the template refuses."""
        if not use.offered and not any(message.tool_calls for message in messages):
            return self.render(msgspec.to_builtins(messages))
        if self.template is not None:
            turns = [_as_turn(message, self.template) for message in messages]
            return self._render_with_tools(turns, [tool.shown() for tool in use.offered])
        turns = list(_as_text(messages))
        if use.offered:
            _tell(turns, _instructions(use), in_system_turn=takes_system_turns(self.render))
        return self.render(turns)


def _as_turn(message: ChatMessage, template: ToolTemplate) -> dict[str, Any]:
    turn: dict[str, Any] = msgspec.to_builtins(message)
    has_short_ids = template.style.has_short_ids
    if message.content is None:
        turn["content"] = template.silent_content
    for call in turn.get("tool_calls", ()):
        function = call["function"]
        if template.arguments_are_text:
            function["arguments"] = _json(function["arguments"])
        call["id"] = _short_id(call["id"]) if has_short_ids else call["id"]
    if message.tool_call_id is not None and has_short_ids:
        turn["tool_call_id"] = _short_id(message.tool_call_id)
    return turn


def _short_id(call_id: str) -> str:
    # Mistral's templates refuse all others, and calls may come from elsewhere.
    if _SHORT_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]


def _as_text(messages: Iterable[ChatMessage]) -> Iterator[dict[str, Any]]:
    """Write calls and results as text, so that turns of user and assistant still alternate."""
    for role, turns in groupby(messages, lambda message: message.role):
        if role == "tool":
            results = (f"<tool_response>\n{turn.text}\n</tool_response>" for turn in turns)
            yield {"role": "user", "content": "\n".join(results)}
            continue
        for turn in turns:
            calls = (_call_text(call) for call in turn.tool_calls)
            said = [turn.text] if turn.text or not turn.tool_calls else []
            name = {} if turn.name is None else {"name": turn.name}
            yield {"role": role, "content": "\n".join([*said, *calls]), **name}


def _call_text(call: ToolCall) -> str:
    text = _json({"name": call.function.name, "arguments": call.function.arguments})
    return f"<tool_call>\n{text}\n</tool_call>"


def _instructions(use: ToolUse) -> str:
    tools = "\n".join(_json(tool.shown()) for tool in use.offered)
    return _INSTRUCTIONS.format(tools=tools, several=_SEVERAL if use.is_parallel else _ONE)


def _tell(turns: list[dict[str, Any]], instructions: str, *, in_system_turn: bool) -> None:
    role = "system" if in_system_turn else "user"
    first = next((turn for turn in turns if turn["role"] == role), None)
    if first is None:
        turns.insert(0, {"role": role, "content": instructions})
    elif in_system_turn:
        first["content"] = f"{first['content']}\n\n{instructions}"
    else:
        first["content"] = f"{instructions}\n\n{first['content']}"


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)
