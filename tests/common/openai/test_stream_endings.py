import msgspec
import pytest

from meshnet_common.openai.errors import overloaded
from meshnet_common.openai.sse import DONE_EVENT, data_event
from meshnet_common.openai.stream_endings import DoneEnding, NumberedEnding

ERROR = overloaded("Full.", 5)


def test_an_error_is_one_event_behind_which_the_stream_is_done() -> None:
    ending = DoneEnding()
    assert ending.done == DONE_EVENT
    assert ending.failed(ERROR.to_json(), 3) == data_event(ERROR.to_json()) + DONE_EVENT
    assert ending.failed(b'{\n"error": {}\r\n}\n', 0) == data_event(b'{ "error": {} }') + DONE_EVENT


def test_where_events_are_numbered_an_error_has_the_next_number_and_ends_the_stream() -> None:
    ending = NumberedEnding()
    assert ending.done == b""
    told = ending.failed(ERROR.to_json(), 3)
    assert msgspec.json.decode(told.removeprefix(b"data: ")) == {
        "type": "error",
        "code": "overloaded",
        "message": "Full.",
        "param": None,
        "sequence_number": 3,
    }
    assert told.count(b"\n\n") == 1


def test_an_error_that_nobody_can_read_is_told_all_the_same() -> None:
    for envelope in (b"", b"junk", b"[]", b"[" * 2000):
        told = NumberedEnding().failed(envelope, 0)
        assert msgspec.json.decode(told.removeprefix(b"data: "))["type"] == "error"


@pytest.mark.parametrize("data", [b"", b"junk", b"[1]", b'{"type": 1}', b"[" * 2000, b'{"a": 1}'])
def test_a_stream_is_not_whole_by_any_other_event(data: bytes) -> None:
    assert not DoneEnding().is_told(data)
    assert not NumberedEnding().is_told(data)


def test_a_stream_is_whole_by_done() -> None:
    assert DoneEnding().is_told(b"[DONE]")
    assert not DoneEnding().is_told(b'{"type": "response.completed"}')


@pytest.mark.parametrize("last", ["completed", "incomplete", "failed"])
def test_where_events_are_numbered_a_stream_is_whole_by_its_last_event(last: str) -> None:
    ending = NumberedEnding()
    data = msgspec.json.encode({"response": {"output": [1]}, "type": f"response.{last}"})
    assert ending.is_told(data)
    assert ending.is_told(ending.failed(ERROR.to_json(), 1).removeprefix(b"data: ").strip())
    assert ending.is_told(b"[DONE]")
    assert not ending.is_told(b'{"type": "response.output_text.done"}')
