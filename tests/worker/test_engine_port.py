import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_worker.engine_port import (
    CloseSession,
    Command,
    DeviceProbed,
    Draw,
    DropLayers,
    Event,
    ExtendSession,
    LayersDropped,
    LayersLoaded,
    LoadFailed,
    LoadLayers,
    LoadProgressed,
    Message,
    MessageParser,
    Noted,
    OpenSession,
    ProbeDevice,
    RunSegment,
    SessionFailed,
    Stepped,
    StepResult,
    Tune,
    encode_message,
)

BODIES: list[Command | Event] = [
    ProbeDevice(),
    LoadLayers(1, "folder", "float32", 0, 4),
    DropLayers(1, 0, 4),
    OpenSession(9, 1, 0, 4, 100),
    ExtendSession(9, 200),
    RunSegment(9, (1, 0), 0, 2, 3, token_ids=(4, 5), draw=Draw(0.5, 0.9, 7)),
    RunSegment(9, (1, 0), 0, 2),
    CloseSession(9),
    Tune(2, 3, compiles=False),
    DeviceProbed("cpu", "CPU", 1, 2, 3.5, "layer", 64),
    LoadProgressed(1, 5, 9),
    LayersLoaded(1, 0, 4, 32, 64),
    LoadFailed(1, 0, 4, "why"),
    LayersDropped(1, 0, 4),
    Stepped((StepResult(9, (1, 0), 0, 2, 3, 64, None),), 0.1, 0.2),
    Noted("decode steps compiled", {"layers": "[0, 4)", "width": 1, "gain": 1.5}),
    SessionFailed(9, "why"),
]
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
