"""The grammar of an answer that calls functions: what the Tail Worker's token masks hold it to.

A forced answer is nothing but calls. One that may call has text as it likes, but behind a marker
stands a call, held to its function's schema if that is strict. With a format for what is no call,
an answer is either that or calls. The text is in the language of the library that makes the masks.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from meshnet_common.openai.formats import LAYOUT, JsonSchema, ResponseFormat, Text, grammar_text
from meshnet_common.openai.tools import FunctionTool, ToolUse
from meshnet_worker.text.call_styles import CallStyle

_ANY_OBJECT = {"type": "object"}
# Where a call may begin without a marker, text must not look like one.
_TEXT, _TEXT_NO_OBJECT = r"(.|\n)*", r"([^{ \t\n](.|\n)*)?"


def answer_grammar(style: CallStyle, use: ToolUse, answer_format: ResponseFormat) -> str:
    """Write the grammar of the whole answer; empty where a model may write what it likes."""
    if use.is_forced:
        return _forced(style, use)
    if not use.offered:
        return grammar_text(answer_format)
    if not isinstance(answer_format, Text):
        return _formatted(style, use, answer_format)
    return _free(style, use) if any(tool.strict for tool in use.offered) else ""


def holds_calls(style: CallStyle, use: ToolUse, answer_format: ResponseFormat) -> bool:
    """Whether that grammar lets nothing begin like a call and be none."""
    if use.is_forced:
        return True
    is_text = isinstance(answer_format, Text)
    # Where calls need no marker, an object of the format may begin like one.
    return any(tool.strict for tool in use.offered) if is_text else not style.begins_bare


def _forced(style: CallStyle, use: ToolUse) -> str:
    return _lines([f"start: {_only_calls(style, use)}", *_rules(style, use.callable_now)])


def _formatted(style: CallStyle, use: ToolUse, answer_format: ResponseFormat) -> str:
    schema = answer_format.schema if isinstance(answer_format, JsonSchema) else _ANY_OBJECT
    start = f"start: {_json(schema)} | {_only_calls(style, use)}"
    if not style.begins_bare:
        return _lines([start, *_rules(style, use.callable_now)])
    # Both are objects: only if both are written as such can either go on after the same beginning.
    calls = (_json(_call_schema(style, tool)) for tool in use.callable_now)
    return _lines([start, f"call: {' | '.join(calls)}"])


def _call_schema(style: CallStyle, tool: FunctionTool) -> dict[str, Any]:
    arguments = dict(tool.held_to or _ANY_OBJECT)
    # References begin at the root.
    places = ("$defs", "definitions")
    shared = {place: arguments.pop(place) for place in places if place in arguments}
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, style.arguments_key: arguments},
        "required": ["name", style.arguments_key],
        "additionalProperties": False,
        **shared,
    }


def _only_calls(style: CallStyle, use: ToolUse) -> str:
    calls = _calls(style, is_parallel=use.is_parallel)
    return calls if style.begins_bare else f"{_marker(style, style.opening)} {calls}"


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
    if style.arguments_marker:
        return f"call ({_marker(style, style.opening)} call)*" if is_parallel else "call"
    # Templates of this family show one call a turn only.
    return "call"


def _rules(style: CallStyle, tools: Iterable[FunctionTool]) -> list[str]:
    bodies = [f"call_{place}: {_body(style, tool)}" for place, tool in enumerate(tools)]
    names = " | ".join(f"call_{place}" for place in range(len(bodies)))
    return [f"call: {names}", *bodies, *_id_rules(style)]


def _body(style: CallStyle, tool: FunctionTool) -> str:
    arguments = _json(tool.held_to or _ANY_OBJECT)
    if style.arguments_marker:
        call_id = "call_id? " if _id_rules(style) else ""
        marker = _marker(style, style.arguments_marker)
        return f"{_quoted(tool.name)} {call_id}{marker} {arguments}"
    head = json.dumps({"name": tool.name})[:-1] + f', "{style.arguments_key}": '
    return f'{_quoted(head)} {arguments} "}}"'


def _id_rules(style: CallStyle) -> list[str]:
    # As text the marker would only be one more way to go astray.
    if style.id_marker not in style.special:
        return []
    return [f"call_id: {_marker(style, style.id_marker)} ID", "ID: /[a-zA-Z0-9]{9}/"]


def _json(schema: Mapping[str, Any]) -> str:
    text = msgspec.json.encode({**schema, "x-guidance": LAYOUT}).decode()
    return f"%json {text}"


def _marker(style: CallStyle, marker: str) -> str:
    token_id = style.special.get(marker)
    return _quoted(marker) if token_id is None else f"<[{token_id}]>"


def _quoted(text: str) -> str:
    return json.dumps(text)


def _lines(rules: Iterable[str]) -> str:
    return "\n".join(["%llguidance {}", *rules, ""])
