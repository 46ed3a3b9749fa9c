import json
from typing import Any

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from meshnet_common.openai.pieces import (
    FinishReason,
    Piece,
    TextPiece,
    ToolCallPiece,
    WholeChoice,
)
from meshnet_common.openai.response_request import parse_response_request
from meshnet_common.openai.response_writer import ResponseWriter
from meshnet_common.openai.writer import AnswerIdentity, Usage

IDENTITY = AnswerIdentity("resp_1", 1_700_000_000, "smol", "fp_1")
USAGE = Usage.of(prompt_tokens=3, completion_tokens=4)
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TEXT = (TextPiece("H"), TextPiece("é"))
CALLS: tuple[Piece, ...] = (
    ToolCallPiece(0, "call_1", "add"),
    ToolCallPiece(0, arguments='{"a"'),
    ToolCallPiece(0, arguments=": 1}"),
    ToolCallPiece(1, "call_2", "sub", "{}"),
)


def writer(**fields: Any) -> ResponseWriter:
    body = {"model": "smol", "input": "Hi", **fields}
    return ResponseWriter(IDENTITY, parse_response_request(json.dumps(body).encode()))


def streamed(*pieces: Piece, reason: FinishReason = FinishReason.STOP, **fields: Any) -> list[Any]:
    one = writer(**fields)
    payloads = [*one.begin(0), *(p for piece in pieces for p in one.pieces(0, [piece]))]
    payloads += [*one.finish(0, reason), *one.usage(USAGE)]
    for payload in payloads:
        EVENT.validate_json(payload)
    return [json.loads(payload) for payload in payloads]


def whole(*pieces: Piece, reason: FinishReason = FinishReason.STOP, **fields: Any) -> Any:
    body = writer(**fields).whole([WholeChoice(0, pieces, reason)], USAGE)
    Response.model_validate_json(body)
    return json.loads(body)


def kinds(events: list[Any]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_a_text_is_told_from_its_beginning_to_its_end() -> None:
    events = streamed(*TEXT)
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert {event["item_id"] for event in events if "item_id" in event} == {"msg_1"}
    assert events[6]["text"] == "Hé"
    assert events[0]["response"]["status"] == "in_progress"
    assert events[0]["response"]["usage"] is None


def test_calls_are_items_of_their_own() -> None:
    events = streamed(TextPiece("So."), *CALLS, reason=FinishReason.TOOL_CALLS)
    added = [event for event in events if event["type"] == "response.output_item.added"]
    assert [event["output_index"] for event in added] == [0, 1, 2]
    assert [event["item"]["id"] for event in added] == ["msg_1", "fc_1", "fc_2"]
    message, add, sub = events[-1]["response"]["output"]
    assert message["content"][0]["text"] == "So."
    assert (add["call_id"], add["name"], add["arguments"]) == ("call_1", "add", '{"a": 1}')
    assert (sub["arguments"], sub["status"]) == ("{}", "completed")
    assert kinds(events)[8:13] == [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]


def test_a_second_message_has_an_id_of_its_own() -> None:
    output = whole(TextPiece("a"), CALLS[3], TextPiece("b"))["output"]
    assert [item["id"] for item in output] == ["msg_1", "fc_2", "msg_1_1"]


def test_an_answer_that_says_nothing_is_an_empty_message() -> None:
    assert kinds(streamed())[2:4] == ["output_item.added", "content_part.added"]
    (message,) = whole()["output"]
    assert message["content"][0]["text"] == ""


def test_an_answer_that_a_limit_cuts_is_incomplete() -> None:
    for pieces in (TEXT, CALLS):
        last = streamed(*pieces, reason=FinishReason.LENGTH)[-1]
        assert last["type"] == "response.incomplete"
        assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
        assert last["response"]["output"][-1]["status"] == "incomplete"
        assert last["response"]["status"] == "incomplete"


def test_the_last_event_has_the_whole_answer() -> None:
    for pieces in ((), TEXT, CALLS, (*TEXT, *CALLS)):
        assert streamed(*pieces)[-1]["response"] == whole(*pieces)


def test_usage_has_its_details() -> None:
    assert whole(*TEXT)["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 7,
    }


def test_what_was_asked_for_is_told_again() -> None:
    tool = {"type": "function", "name": "add", "parameters": {"type": "object"}}
    fields: dict[str, Any] = {
        "instructions": "Be kind.",
        "metadata": {"a": "b"},
        "max_output_tokens": 9,
        "tools": [tool],
        "tool_choice": "none",
        "parallel_tool_calls": False,
        "temperature": 0.5,
        "text": {"format": {"type": "json_object"}},
    }
    told = whole(*TEXT, **fields)
    assert {name: told[name] for name in fields if name not in {"tools", "text"}} == {
        name: value for name, value in fields.items() if name not in {"tools", "text"}
    }
    assert told["tools"][0]["name"] == "add"
    assert told["text"]["format"]["type"] == "json_object"
    assert (told["store"], told["previous_response_id"]) == (False, None)


def test_one_that_is_told_all_again_goes_on_with_the_next_number() -> None:
    first, second = writer(), writer()
    told = [*first.begin(0), *first.pieces(0, TEXT)]
    assert [*second.begin(0), *second.pieces(0, TEXT)] == told
    assert second.finish(0, FinishReason.STOP) == first.finish(0, FinishReason.STOP)
    assert second.usage(USAGE) == first.usage(USAGE)
