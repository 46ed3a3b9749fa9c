"""Finds out what a chat template does with tools, by letting it render a small example of each.

Templates say nowhere what they can, and their text has many forms; what comes out tells it: whether
tools are shown at all, in which family's style calls are written, and which form of a history is
shown whole.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Protocol

from meshnet_common.openai.errors import ApiError
from meshnet_worker.text.call_styles import HERMES, LLAMA, MISTRAL, NEWER_MISTRAL, CallStyle

_NAME = "probed_function"
_KEY, _RESULT, _RULE = "probed_key", "probed result", "probed rule"
# Mistral's templates refuse any other form of an id.
_ID = "probe1234"
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "A function.",
        "parameters": {
            "type": "object",
            "properties": {_KEY: {"type": "integer", "description": "A number."}},
            "required": [_KEY],
        },
    },
}
_USER = {"role": "user", "content": "probed question"}
_CALL = re.compile(rf'"name"\s*:\s*"{_NAME}"')
_NAMED_CALL = re.compile(rf"\[TOOL_CALLS\]\s*{_NAME}(\[CALL_ID\]{_ID})?(\[ARGS\])?\s*\{{")
_LLAMA_CALL = re.compile(rf'\{{\s*"name"\s*:\s*"{_NAME}"\s*,\s*"parameters"\s*:')


class Render(Protocol):
    """Writes a prompt; raises ApiError if it cannot be written."""

    def __call__(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = (), /
    ) -> str: ...


@dataclass(frozen=True, slots=True)
class ToolTemplate:
    """How a template that knows tools must be used."""

    style: CallStyle
    silent_content: str | None
    """The content of a turn that is nothing but calls."""
    arguments_are_text: bool
    """Whether arguments are shown as they should be only if they are JSON text already."""


def probe_tools(render: Render) -> ToolTemplate | None:
    """Return how this template shows tools; None if it does not, or in no style known here."""
    if _NAME not in _rendered(render, [_USER], [_TOOL]):
        return None
    for silent_content, as_text in product((None, ""), (False, True)):
        shown = _rendered(render, _history(silent_content, as_text), [_TOOL])
        # What stands before the question tells how to call, and is no call.
        style = _style_of(shown.rpartition(_USER["content"])[2])
        if style is not None:
            return ToolTemplate(style, silent_content, as_text)
    return None


def takes_system_turns(render: Render) -> bool:
    """Whether a system turn comes to the model at all."""
    return _RULE in _rendered(render, [{"role": "system", "content": _RULE}, _USER], [])


def _history(silent_content: str | None, arguments_are_text: bool) -> list[Mapping[str, Any]]:
    arguments = f'{{"{_KEY}": 1}}' if arguments_are_text else {_KEY: 1}
    function = {"name": _NAME, "arguments": arguments}
    call = {"id": _ID, "type": "function", "function": function}
    return [
        _USER,
        {"role": "assistant", "content": silent_content, "tool_calls": [call]},
        {"role": "tool", "content": _RESULT, "name": _NAME, "tool_call_id": _ID},
    ]


def _style_of(shown: str) -> CallStyle | None:
    # A key within quotes that are not escaped: arguments as JSON, once.
    if _RESULT not in shown or f'"{_KEY}"' not in shown:
        return None
    if _NAMED_CALL.search(shown):
        return NEWER_MISTRAL
    call = _CALL.search(shown)
    if call is None:
        return None
    before = shown[: call.start()]
    for style in (HERMES, MISTRAL):
        if style.opening in before:
            return style
    return LLAMA if _LLAMA_CALL.search(shown) else None


def _rendered(
    render: Render, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> str:
    try:
        return render(messages, tools)
    except ApiError:
        return ""
