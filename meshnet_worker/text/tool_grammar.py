"""The grammar of an answer that calls functions: what the Tail Worker's token masks hold it to.

A forced answer is nothing but calls. One that may call has text as it likes, but behind a marker
stands a call, held to its function's schema if that is strict. The text is in the language of the
library that makes the masks.
"""

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from meshnet_common.openai.formats import LAYOUT
from meshnet_common.openai.tools import FunctionTool, ToolUse
from meshnet_worker.text.call_styles import CallStyle

_ANY_OBJECT = {"type": "object"}
# Where a call may begin without a marker, text must not look like one.
_TEXT, _TEXT_NO_OBJECT = r"(.|\n)*", r"([^{ \t\n](.|\n)*)?"


def call_grammar(style: CallStyle, use: ToolUse) -> str:
    """Write the grammar of the whole answer; empty where a model may write what it likes."""
    if use.is_forced:
        return _forced(style, use)
    if any(tool.strict for tool in use.offered):
        return _free(style, use)
    return ""


def _forced(style: CallStyle, use: ToolUse) -> str:
    calls = _calls(style, is_parallel=use.is_parallel)
    opening = "" if style.begins_bare else _marker(style, style.opening)
    rules = [f"start: {opening} {calls}", *_rules(style, use.callable_now)]
    return _lines(rules)


def _free(style: CallStyle, use: ToolUse) -> str:
    calls = _calls(style, is_parallel=use.is_parallel)
    several = "*" if use.is_parallel else "?"
    rules = [f"start: marked{several} TEXT", f"TEXT: /{_TEXT}/"]
    if style.begins_bare:
        rules = [
            f"start: {calls} | first_text | first_marked marked{several} TEXT",
            "first_text: FIRST",
            f"FIRST: /{_TEXT_NO_OBJECT}/",
            f"first_marked: FIRST {_marker(style, style.opening)} {calls}",
            f"TEXT: /{_TEXT}/",
        ]
    if style.opening in style.special:
        rules.append(f"marked: TEXT {_marker(style, style.opening)} {calls}")
    else:
        rules += [
            f"opening[lazy]: TEXT {_quoted(style.opening)}",
            f"marked: opening {calls}",
        ]
    return _lines([*rules, *_rules(style, use.callable_now)])


def _calls(style: CallStyle, *, is_parallel: bool) -> str:
    """What stands behind an opening marker, or in its place."""
    if style.is_list:
        more = f"({_quoted(', ')} call)*" if is_parallel else ""
        return f'" "? "[" call {more} "]"'
    if style.closing:
        closing = f'"\\n" {_marker(style, style.closing)}'
        again = f'("\\n" {_marker(style, style.opening)} "\\n" call {closing})*'
        return f'"\\n" call {closing} {again if is_parallel else ""}'
    # Templates of this family show one call a turn only.
    return "call"


def _rules(style: CallStyle, tools: Iterable[FunctionTool]) -> list[str]:
    bodies = []
    for place, tool in enumerate(tools):
        head = json.dumps({"name": tool.name})[:-1] + f', "{style.arguments_key}": '
        bodies.append(f'call_{place}: {_quoted(head)} {_schema(tool)} "}}"')
    names = " | ".join(f"call_{place}" for place in range(len(bodies)))
    return [f"call: {names}", *bodies]


def _schema(tool: FunctionTool) -> str:
    schema: dict[str, Any] = tool.held_to or _ANY_OBJECT
    text = msgspec.json.encode({**schema, "x-guidance": LAYOUT}).decode()
    return f"%json {text}"


def _marker(style: CallStyle, marker: str) -> str:
    token_id = style.special.get(marker)
    return _quoted(marker) if token_id is None else f"<[{token_id}]>"


def _quoted(text: str) -> str:
    return json.dumps(text)


def _lines(rules: Iterable[str]) -> str:
    return "\n".join(["%llguidance {}", *rules, ""])
