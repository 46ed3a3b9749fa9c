from meshnet_common.openai.errors import overloaded
from meshnet_common.openai.sse import DONE_EVENT, data_event
from meshnet_common.openai.stream_endings import DoneEnding

ERROR = overloaded("Full.", 5)


def test_an_error_is_one_event_behind_which_the_stream_is_done() -> None:
    ending = DoneEnding()
    assert ending.done == DONE_EVENT
    assert ending.failed(ERROR.to_json(), 3) == data_event(ERROR.to_json()) + DONE_EVENT
    assert ending.failed(b'{\n"error": {}\r\n}\n', 0) == data_event(b'{ "error": {} }') + DONE_EVENT
