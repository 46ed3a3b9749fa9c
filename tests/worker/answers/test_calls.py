"""Answers with tool calls, as a client gets them and as another Head Worker goes on with them."""

import json
from functools import partial
from typing import Any

import pytest

from meshnet_common.openai.sse import DONE_EVENT
from meshnet_common.openai.tools import call_id
from meshnet_worker.text.call_styles import HERMES
from meshnet_worker.text.tool_calls import CallRules
from tests.worker.answers.scripts import IDENTITY, Script, delivered, end_id, ids_of

NAMES = frozenset({"look", "wait"})
RULES = CallRules(HERMES, NAMES, partial(call_id, IDENTITY.id, 0))
SURE = CallRules(HERMES, NAMES, RULES.call_id, is_sure=True)
ARGUMENTS = '{"at": "日本 😀 stop"}'
LOOK = f'<tool_call>\n{{"name": "look", "arguments": {ARGUMENTS}}}\n</tool_call>'
WAIT = '<tool_call>\n{"name": "wait", "arguments": {}}\n</tool_call>'
SAID = f"Let me see.\n{LOOK}\n{WAIT}"
BOTH = pytest.mark.parametrize("calls", [RULES, SURE], ids=["free", "sure"])


def script(text: str = SAID, **fields: Any) -> Script:
    end = end_id("bytes")
    ended = {"end_ids": frozenset({end}), "calls": RULES, **fields}
    return Script([*ids_of("bytes", text), end], **ended)


def choices_of(one: Script) -> list[dict[str, Any]]:
    """The events of the only choice."""
    data, _ = delivered(one.told())
    events = data.removesuffix(DONE_EVENT).split(b"\n\n")[:-1]
    return [json.loads(event.removeprefix(b"data: "))["choices"][0] for event in events]


def message_of(one: Script) -> dict[str, Any]:
    (choice,) = choices_of(Script(**{**one.__dict__, "stream": False}))
    return {"finish_reason": choice["finish_reason"], **choice["message"]}


def joined(one: Script) -> dict[str, Any]:
    """What a client makes of a stream."""
    content, calls, finish = "", list[dict[str, Any]](), None
    for choice in choices_of(one):
        assert finish is None
        content += choice["delta"].get("content") or ""
        fragments = choice["delta"].get("tool_calls", [])
        # The official Python client takes the first list of fragments as it is.
        assert len(fragments) <= 1
        for fragment in fragments:
            if fragment["index"] == len(calls):
                assert fragment["function"].pop("arguments") == ""
                calls.append({**fragment, "arguments": ""})
            else:
                assert fragment.keys() == {"index", "function"}
                assert fragment["function"].keys() == {"arguments"}
                calls[fragment["index"]]["arguments"] += fragment["function"]["arguments"]
        finish = choice["finish_reason"]
    return {"content": content, "calls": calls, "finish_reason": finish}


@BOTH
def test_a_stream_of_calls_joins_to_the_whole_answer(calls: CallRules) -> None:
    told, whole = joined(script(calls=calls)), message_of(script(calls=calls))

    ids = [call_id(IDENTITY.id, 0, index) for index in (0, 1)]
    assert told == {
        "content": "Let me see.",
        "calls": [
            {"index": 0, "id": ids[0], "type": "function", "function": {"name": "look"},
             "arguments": ARGUMENTS},
            {"index": 1, "id": ids[1], "type": "function", "function": {"name": "wait"},
             "arguments": "{}"},
        ],
        "finish_reason": "tool_calls",
    }  # fmt: skip
    assert whole["content"] == "Let me see."
    assert whole["finish_reason"] == "tool_calls"
    assert whole["tool_calls"] == [
        {"id": ids[0], "type": "function", "function": {"name": "look", "arguments": ARGUMENTS}},
        {"id": ids[1], "type": "function", "function": {"name": "wait", "arguments": "{}"}},
    ]


def test_sure_arguments_come_in_many_fragments_and_others_in_one() -> None:
    def fragments(calls: CallRules) -> int:
        deltas = [choice["delta"] for choice in choices_of(script(LOOK, calls=calls))]
        return sum(1 for delta in deltas if "tool_calls" in delta)

    assert fragments(RULES) == 2
    assert fragments(SURE) > 10


def test_an_answer_of_nothing_but_calls_has_no_content() -> None:
    message = message_of(script(WAIT))

    assert message["content"] is None
    assert len(message["tool_calls"]) == 1


def test_an_answer_without_calls_has_none_and_stops() -> None:
    message = message_of(script("Sunny."))

    assert (message["content"], message["finish_reason"]) == ("Sunny.", "stop")
    assert "tool_calls" not in message


@BOTH
def test_a_call_that_a_limit_cuts_ends_with_length(calls: CallRules) -> None:
    tokens = len(ids_of("bytes", SAID[: SAID.index(" stop")]))
    told = joined(script(most_tokens=tokens, calls=calls))

    assert told["finish_reason"] == "length"
    assert ARGUMENTS.startswith(told["calls"][0]["arguments"])
    assert message_of(script(most_tokens=tokens, calls=calls))["finish_reason"] == "length"


def test_text_behind_a_call_changes_nothing_about_how_the_answer_ended() -> None:
    assert joined(script(f"{WAIT} Done."))["finish_reason"] == "tool_calls"
    assert joined(script(f"{WAIT} Done.", stop=("Do",)))["finish_reason"] == "tool_calls"


@BOTH
@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_with_calls_cut_at_any_line_goes_on_with_exactly_what_is_missing(
    stream: bool, api: str, calls: CallRules
) -> None:
    one = script(stream=stream, include_usage=stream, calls=calls, api=api)
    whole = one.told()
    uncut, _ = delivered(whole)
    edges = [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")]
    for cut in edges:
        got, reader = delivered(whole[:cut])
        if reader.record is None:
            assert got == b""
        elif not (got.endswith(DONE_EVENT) or (not stream and got)):
            got += delivered(one.told(reader.record), reader.record)[0]
            assert got.removesuffix(DONE_EVENT) == uncut.removesuffix(DONE_EVENT)
