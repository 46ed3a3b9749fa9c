import msgspec
import pytest

from meshnet_common.protocol.sampling import History, Sampling, TokenLogprobs
from meshnet_worker.engine_port import (
    ArmSession,
    CloseSession,
    Command,
    DeviceProbed,
    DropLayers,
    DropTexts,
    EncodeFailed,
    EncodeTexts,
    Event,
    ExtendSession,
    LayersDropped,
    LayersLoaded,
    LoadFailed,
    LoadLayers,
    LoadProgressed,
    Noted,
    OpenSession,
    ProbeDevice,
    RunSegment,
    SessionFailed,
    Stepped,
    StepResult,
    TextsEncoded,
    Tune,
)

SAMPLING = Sampling(temperature=0.5, top_p=0.9, seed=1, logit_bias=((3, -1.5),), grammar="a")
LOGPROBS = TokenLogprobs(-0.5, ((5, -0.5), (2, -1.5)))
BODIES: list[Command | Event] = [
    ProbeDevice(),
    LoadLayers(1, "folder", "float32", 0, 4),
    DropLayers(1, 0, 4),
    OpenSession(9, 1, 0, 4, 100),
    ArmSession(9, (1, 0), SAMPLING),
    ArmSession(9, (1, 1), SAMPLING, History(answer_start=3, answer_ids=(5,), prompt_ids=(1, 2))),
    ExtendSession(9, 200),
    RunSegment(9, (1, 0), 0, 2, 3, token_ids=(4, 5), draws=True),
    RunSegment(9, (1, 0), 0, 2),
    CloseSession(9),
    EncodeTexts(4, 1, (3, 2)),
    DropTexts(4),
    Tune(2, 3, compiles=False),
    DeviceProbed("cpu", "CPU", 1, 2, 3.5, "layer", 64),
    LoadProgressed(1, 5, 9),
    LayersLoaded(1, 0, 4, 32, 64),
    LoadFailed(1, 0, 4, "why"),
    LayersDropped(1, 0, 4),
    Stepped((StepResult(9, (1, 0), 0, 2, 3, 64, None),), 0.1, 0.2),
    Stepped((StepResult(9, (1, 0), 0, 2, 3, 0, 5, None, LOGPROBS),), 0.1, 0.2),
    TextsEncoded(4),
    EncodeFailed(4, "why"),
    Noted("decode steps compiled", {"layers": "[0, 4)", "width": 1, "gain": 1.5}),
    SessionFailed(9, "why"),
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_everything_that_is_said_reads_back(body: Command | Event) -> None:
    encoded = msgspec.msgpack.encode(body)
    assert msgspec.msgpack.decode(encoded, type=Command | Event) == body
