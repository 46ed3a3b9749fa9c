import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_worker.engine_messages import Message, MessageParser, encode_message
from meshnet_worker.engine_port import Command, Event
from tests.worker.test_engine_port import BODIES

MESSAGES = st.builds(Message, st.sampled_from(BODIES), st.binary(max_size=64))


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_everything_that_is_said_survives_the_socket(body: Command | Event) -> None:
    parser = MessageParser()
    parser.feed(encode_message(body, b"rows"))
    assert list(parser.messages()) == [Message(body, b"rows")]


@given(st.lists(MESSAGES, max_size=6), st.data())
def test_messages_survive_any_chunking(messages: list[Message], data: st.DataObject) -> None:
    wire = b"".join(encode_message(message.body, message.payload) for message in messages)
    parser = MessageParser()
    heard: list[Message] = []
    while wire:
        size = data.draw(st.integers(1, len(wire)))
        parser.feed(wire[:size])
        wire = wire[size:]
        heard += parser.messages()
    assert heard == messages
