"""What holds of tool calls in whatever a model may write."""

import json

from hypothesis import given
from hypothesis import strategies as st

from meshnet_worker.text.call_styles import CallStyle
from tests.worker.text.told_calls import (
    ADD,
    NAMES,
    STYLES,
    WEATHER,
    call,
    parsed,
    symbols,
    told,
)

FRAGMENTS = st.sampled_from(
    [
        "<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", " ", "\n", "[", "]", ",",
        ";", "{", "}", '"', "\\", call(), call("add", "{}", "parameters"), call("rm"), "text", "<",
        "add", "add[ARGS]", "[ARGS]", "[CALL_ID]", "[CALL_ID]abc123xyz", "[AR",
        '{"name": "add"', '"arguments": {', "é", ": ", "null", "</tool", "1", "[T",
    ]
)  # fmt: skip
TEXTS = st.lists(FRAGMENTS, max_size=14).map("".join)
STYLE = st.sampled_from(list(STYLES.values()))


@given(STYLE, TEXTS, st.booleans(), st.booleans(), st.data())
def test_the_result_is_the_same_however_the_text_is_cut(
    style: CallStyle, text: str, is_cut: bool, is_sure: bool, data: st.DataObject
) -> None:
    whole = symbols(style, text)
    parts: list[str] = []
    for symbol in whole:
        joins = parts and not {symbol, parts[-1]} & style.special.keys()
        if joins and data.draw(st.booleans()):
            parts[-1] += symbol
        else:
            parts.append(symbol)

    by_symbol = told(style, whole, is_cut=is_cut, is_sure=is_sure)
    assert told(style, parts, is_cut=is_cut, is_sure=is_sure).all == by_symbol.all


@given(STYLE, TEXTS)
def test_arguments_are_json_and_nothing_is_lost(style: CallStyle, text: str) -> None:
    result = parsed(style, text)

    for name, arguments in result.calls:
        assert name in NAMES
        assert isinstance(json.loads(arguments), dict)
    assert result.complete == len(result.calls)
    if not result.calls:
        assert result.content == "".join(one for one in symbols(style, text) if len(one) == 1)


PLAIN = st.text(st.sampled_from("ab é\n.-:>)}"), max_size=8)
SEGMENTS = st.lists(PLAIN | st.sampled_from([WEATHER, ADD]), max_size=6)


@given(STYLE, SEGMENTS)
def test_calls_and_the_text_between_them_come_out_as_they_went_in(
    style: CallStyle, segments: list[str | tuple[str, str]]
) -> None:
    text, content = "", ""
    for segment in segments:
        if isinstance(segment, str):
            text += segment
            content += segment
        else:
            text += f"{style.opening}{call(*segment)}{style.closing}"
            content = content.rstrip() + "|"
    content = "".join(part.lstrip() if n else part for n, part in enumerate(content.split("|")))
    calls = [segment for segment in segments if not isinstance(segment, str)]

    assert parsed(style, text).all == (content, calls, len(calls))
