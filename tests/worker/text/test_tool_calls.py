import json
from dataclasses import replace

import pytest

from meshnet_common.openai.pieces import TextPiece, ToolCallPiece
from meshnet_worker.text.call_styles import HERMES, MISTRAL, NEWER_MISTRAL, CallStyle
from meshnet_worker.text.tool_calls import ToolCallParser
from tests.worker.text.told_calls import (
    ADD,
    ARGUMENTS,
    NEWER,
    SPECIAL_LLAMA,
    SPECIAL_MISTRAL,
    WEATHER,
    call,
    marked,
    parsed,
    rules,
    told,
)

WELL_FORMED = {
    "one": (HERMES, f"<tool_call>\n{call()}\n</tool_call>", "", [WEATHER]),
    "two": (
        HERMES,
        marked(call()) + "\n" + marked(call("add", "{}")),
        "",
        [WEATHER, ADD],
    ),
    "a list behind one marker": (
        HERMES,
        f"<tool_call>[{call()}, {call('add', '{}')}]</tool_call>",
        "",
        [WEATHER, ADD],
    ),
    "text around it": (
        HERMES,
        f" Let me < look.\n\n<tool_call>{call()}</tool_call>\n Done <tool.\n",
        " Let me < look.Done <tool.\n",
        [WEATHER],
    ),
    "the arguments first": (
        HERMES,
        f'<tool_call>{{"arguments": {ARGUMENTS}, "name": "get_weather"}}</tool_call>',
        "",
        [WEATHER],
    ),
    "no closing marker": (HERMES, f"<tool_call>{call()}", "", [WEATHER]),
    "a type and an id": (
        HERMES,
        '<tool_call>{"type": "function", "id": 3, "name": "add"}</tool_call>',
        "",
        [ADD],
    ),
    "no arguments to speak of": (
        HERMES,
        marked(call("add", "null")) + marked(call("add", "")),
        marked(call("add", "")),
        [ADD],
    ),
    "arguments as a string": (
        HERMES,
        marked(call(arguments=json.dumps(ARGUMENTS))),
        "",
        [WEATHER],
    ),
    "an empty string of arguments": (
        HERMES,
        marked(call("add", json.dumps(""))),
        "",
        [ADD],
    ),
    "a line end in a string": (
        HERMES,
        marked(call("add", '{"a": "x\ny"}')),
        "",
        [("add", '{"a": "x\\ny"}')],
    ),
    "Llama, bare": (SPECIAL_LLAMA, f"\n{call(key='parameters')}", "", [WEATHER]),
    "Llama, several": (
        SPECIAL_LLAMA,
        f"{call(key='parameters')}; {call('add', '{}', 'parameters')}",
        "",
        [WEATHER, ADD],
    ),
    "Llama, marked": (
        SPECIAL_LLAMA,
        f"I look.<|python_tag|>{call(key='parameters')}",
        "I look.",
        [WEATHER],
    ),
    "Mistral": (
        SPECIAL_MISTRAL,
        f"Well:\n[TOOL_CALLS] [{call()}, {call('add', '{}')}]",
        "Well:",
        [WEATHER, ADD],
    ),
    "Mistral, spelled": (MISTRAL, f"[TOOL_CALLS][{call()}]", "", [WEATHER]),
    "Mistral, newer": (
        NEWER,
        f"Well:\n[TOOL_CALLS]get_weather[ARGS]{ARGUMENTS}[TOOL_CALLS]add[ARGS]{{}}",
        "Well:",
        [WEATHER, ADD],
    ),
    "Mistral, newer, with an id": (
        NEWER,
        f"[TOOL_CALLS]get_weather[CALL_ID]abcDEF123[ARGS]{ARGUMENTS}",
        "",
        [WEATHER],
    ),
    "Mistral, newer, with nothing between": (
        NEWER,
        f"[TOOL_CALLS] get_weather {ARGUMENTS}\n[TOOL_CALLS]add{{}} Done",
        "Done",
        [WEATHER, ADD],
    ),
    "Mistral, newer, spelled": (
        NEWER_MISTRAL,
        f"[TOOL_CALLS]get_weather[CALL_ID]x[ARGS] {ARGUMENTS}[TOOL_CALLS]add[ARGS]{{}}",
        "",
        [WEATHER, ADD],
    ),
    "Mistral, newer, but as before": (
        NEWER,
        f"[TOOL_CALLS] [{call()}, {call('add', '{}')}]",
        "",
        [WEATHER, ADD],
    ),
    "Mistral, newer, a line end in a string": (
        NEWER,
        '[TOOL_CALLS]add[ARGS]{"a": "x\ny"}',
        "",
        [("add", '{"a": "x\\ny"}')],
    ),
}


@pytest.mark.parametrize(
    ("style", "text", "content", "calls"), WELL_FORMED.values(), ids=WELL_FORMED
)
def test_calls_are_found_in_every_familys_style(
    style: CallStyle, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    assert parsed(style, text).all == (content, calls, len(calls))


NO_CALLS = {
    "a half marker": (HERMES, "a <tool_cal> b <tool_call"),
    "an unknown function": (HERMES, marked(call("rm"))),
    "no JSON": (HERMES, "<tool_call>get_weather()</tool_call>"),
    "an unclosed object": (HERMES, '<tool_call>{"name": "add", "arguments": {'),
    "text behind a marker": (HERMES, "Write <tool_call> around it."),
    "a number for arguments": (HERMES, marked(call("add", "3"))),
    "a string that is no object": (HERMES, marked(call("add", '"[1]"'))),
    "a key that no call has": (HERMES, '<tool_call>{"name": "add", "to": "x"}</tool_call>'),
    "two names": (HERMES, '<tool_call>{"name": "add", "name": "add"}</tool_call>'),
    "two arguments": (HERMES, '<tool_call>{"name": "add", "arguments": {}, "parameters": {}}'),
    "no name": (HERMES, '<tool_call>{"arguments": {}}</tool_call>'),
    "half a character escaped": (HERMES, marked(call("add", '{"a": "\\ud83d"}'))),
    "Llama, another object": (SPECIAL_LLAMA, '{"answer": {"name": "add"}}'),
    "Llama, an object with a name": (SPECIAL_LLAMA, '{"name": "add"}'),
    "Llama, not at the beginning": (SPECIAL_LLAMA, f"So: {call(key='parameters')}"),
    "Llama, a marker in text": (SPECIAL_LLAMA, "a<|python_tag |>"),
    "Mistral, prose": (MISTRAL, "[TOOL_CALLS] are [none]"),
    "Mistral, newer, prose": (NEWER_MISTRAL, "[TOOL_CALLS] are added {here}"),
    "Mistral, newer, an unknown function": (NEWER_MISTRAL, "[TOOL_CALLS]rm[ARGS]{}"),
    "Mistral, newer, an id before the name": (NEWER_MISTRAL, "[TOOL_CALLS][CALL_ID]x[ARGS]{}"),
    "Mistral, newer, markers in the wrong order": (
        NEWER_MISTRAL,
        "[TOOL_CALLS]add[ARGS][CALL_ID]x{}",
    ),
    "Mistral, newer, words behind the marker": (NEWER_MISTRAL, "[TOOL_CALLS]add[ARGS]x{}"),
    "Mistral, newer, another marker": (NEWER_MISTRAL, "[TOOL_CALLS]add[ARG]{}"),
    "Mistral, newer, no object": (NEWER_MISTRAL, "[TOOL_CALLS]add[ARGS][1]"),
    "Mistral, newer, no arguments": (NEWER_MISTRAL, "[TOOL_CALLS]add[ARGS]"),
    "blanks only": (HERMES, " \n "),
}


@pytest.mark.parametrize(("style", "text"), NO_CALLS.values(), ids=NO_CALLS)
def test_what_is_no_call_stays_text_to_the_last_character(style: CallStyle, text: str) -> None:
    assert parsed(style, text).all == (text, [], 0)


def test_a_call_behind_something_that_only_looked_like_one_is_found() -> None:
    broken = '<tool_call>{"name": "add", "arguments":'

    assert parsed(HERMES, f"{broken}<tool_call>{call()}</tool_call>").all == (broken, [WEATHER], 1)


def test_text_is_told_at_once_where_no_marker_can_have_begun() -> None:
    parser = ToolCallParser(rules(HERMES))

    assert parser.push("one <") == [TextPiece("one")]
    assert parser.push("two") == [TextPiece(" <two")]
    assert parser.push(" <tool_c") == []
    assert parser.push("lassic") == [TextPiece(" <tool_classic")]


def test_an_object_that_can_be_no_call_is_told_at_once() -> None:
    parser = ToolCallParser(rules(SPECIAL_LLAMA))

    assert parser.push('{"answer"') == [TextPiece('{"answer"')]


def test_a_special_token_is_never_text() -> None:
    for text, content in (
        ("a<|python_tag|>print(1)", "aprint(1)"),
        ("<|python_tag|>", ""),
        ("<|python_tag|><|python_tag|>b", "b"),
        ('{"name": <|python_tag|>', '{"name": '),
    ):
        assert parsed(SPECIAL_LLAMA, text).all == (content, [], 0)


def test_text_is_no_marker_where_that_is_a_special_token() -> None:
    text = f"[TOOL_CALLS] [{call()}]"

    assert told(SPECIAL_MISTRAL, [text]).all == (text, [], 0)
    assert told(NEWER, ["[TOOL_CALLS]", "add[ARGS]{}"]).all == ("add[ARGS]{}", [], 0)


CUTS = {
    "before the name": ('<tool_call>{"name": "get_wea', '<tool_call>{"name": "get_wea', []),
    "behind the name": ('<tool_call>{"name": "add", "ar', "", [("add", "")]),
    "in the arguments": ("<tool_call>" + call()[:60], "", [("get_weather", ARGUMENTS[:23])]),
    "in the closing marker": (f"<tool_call>{call()}</tool_c", "", [WEATHER]),
    "between two": (f"<tool_call>[{call()},", "", [WEATHER]),
    "before a name's end": ("[TOOL_CALLS]ad", "[TOOL_CALLS]ad", []),
    "behind a name's end": ("[TOOL_CALLS]add[CALL_ID]x", "", [("add", "")]),
    "in arguments alone": ('[TOOL_CALLS]add[ARGS]{"a"', "", [("add", '{"a"')]),
}


@pytest.mark.parametrize(("text", "content", "calls"), CUTS.values(), ids=CUTS)
def test_a_call_that_was_cut_is_told_as_far_as_it_got(
    text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    style = NEWER_MISTRAL if "[TOOL_CALLS]" in text else HERMES
    result = parsed(style, text, is_cut=True)

    assert (result.content, result.calls) == (content, calls)
    assert result.complete == sum(1 for one in calls if one == WEATHER)


def test_arguments_are_told_while_they_are_written_if_a_grammar_holds_the_model_to_them() -> None:
    parser = ToolCallParser(rules(HERMES, is_sure=True))

    assert parser.push('<tool_call>{"name": "add", ') == [ToolCallPiece(0, "call_0", "add")]
    assert parser.push('"arguments": {"a"') == [ToolCallPiece(0, arguments='{"a"')]
    assert parser.push(": 1") == [ToolCallPiece(0, arguments=": 1")]
    assert parser.push("}}</tool") == [ToolCallPiece(0, arguments="}")]
    assert (parser.finish(is_cut=False), parser.complete_calls) == ([TextPiece("</tool")], 1)


@pytest.mark.parametrize("text", ["<tool_c", "<tool_call>", '<tool_call>{"name": "ad', "\n"])
def test_the_beginning_of_a_call_is_no_text_where_a_grammar_lets_it_be_nothing_else(
    text: str,
) -> None:
    forced = replace(rules(HERMES, is_sure=True), is_forced=True)
    parser = ToolCallParser(forced)

    assert parser.push(text) + parser.finish(is_cut=True) == []
    if text.startswith("<tool_call>"):
        assert parsed(HERMES, f"So: {text}", is_cut=True, is_sure=True).all == ("So:", [], 0)


def test_a_promise_of_a_grammar_that_is_broken_loses_no_text() -> None:
    result = parsed(HERMES, '<tool_call>{"name": "add", "arguments": {no!', is_sure=True)

    assert result.all == ("no!", [("add", "{")], 0)
