"""What the daemon and its engine process say to each other; `engine_messages` lays it out.

Both ends run the same release. Sessions and Shards are small integers here, chosen by the daemon.
"""

import msgspec

from meshnet_common.protocol.bodies import Epoch
from meshnet_common.protocol.sampling import History, Sampling, TokenLogprobs

ENGINE_FAILED = "engine_failed"
GRAMMAR_FAILED = "grammar_failed"
"""The fault of an answer that cannot follow its grammar, on any Worker: what was asked is wrong."""
BATCH_TOKENS = 512
"""Positions in one Batch at most; the daemon derives from it how long a slow one may take."""


class ProbeDevice(msgspec.Struct, frozen=True, tag=True):
    """Asks for the device's facts and a short benchmark; answered by DeviceProbed."""


class LoadLayers(msgspec.Struct, frozen=True, tag=True):
    """Loads Layers into a Shard; answered by LoadProgressed, then LayersLoaded or LoadFailed.

    `quantization` is the Variant's name, `dtype` what it is computed in. Weights are the folder's
    safetensors, or those of the file `gguf`.
    """

    shard: int
    folder: str
    dtype: str
    start: int
    end: int
    quantization: str = ""
    gguf: str = ""


class MeasureLayers(msgspec.Struct, frozen=True, tag=True):
    """Asks how fast loaded Layers of a Shard run; answered by LayersMeasured when there is time."""

    shard: int


class DropLayers(msgspec.Struct, frozen=True, tag=True):
    """Gives Layers' memory back; answered by LayersDropped."""

    shard: int
    start: int
    end: int


class OpenSession(msgspec.Struct, frozen=True, tag=True):
    """Makes room for `positions` of one Session on Layers [start, end); never answered."""

    session: int
    shard: int
    start: int
    end: int
    positions: int


class ExtendSession(msgspec.Struct, frozen=True, tag=True):
    """Makes room for more positions of an open Session, `positions` in all; never answered."""

    session: int
    positions: int


class ArmSession(msgspec.Struct, frozen=True, tag=True):
    """Says how a Session's tokens are drawn from an opening on; never answered.

    With `history`, what the answer is so far: from then on the engine counts itself. Draws that
    segments of earlier openings ask for are left out.
    """

    session: int
    opening: Epoch
    sampling: Sampling
    history: History | None = None


class RunSegment(msgspec.Struct, frozen=True, tag=True):
    """Runs positions [start, start + tokens) of a Session; answered within a Stepped.

    `token_ids` when the Session's Layers start at 0, else the payload is `tokens` rows of hidden
    states. With `draws`, the answer is the token after its last position; without, hidden states
    (or nothing, at the end of the model).
    """

    session: int
    epoch: Epoch
    start: int
    tokens: int
    flags: int = 0
    """The segment's own flags, given back with its result."""
    token_ids: tuple[int, ...] | None = None
    draws: bool = False
    last_hop: int | None = None
    """The segment's own, given back as well."""


class CloseSession(msgspec.Struct, frozen=True, tag=True):
    """Frees a Session's KV and forgets its waiting segments; never answered."""

    session: int


class TruncateSession(msgspec.Struct, frozen=True, tag=True):
    """Forgets a Session's KV from `position` on and its waiting segments; never answered.

    What is reserved stays reserved.
    """

    session: int
    position: int


class SizePool(msgspec.Struct, frozen=True, tag=True):
    """Sets how many KV Blocks each Layer of a Shard has; never answered.

    Never below what open Sessions hold: the daemon counts.
    """

    shard: int
    blocks: int


class EncodeTexts(msgspec.Struct, frozen=True, tag=True):
    """Makes vectors of texts by an encoder; answered by TextsEncoded or EncodeFailed.

    The payload is the token ids of all texts, one after the other, as little-endian int32.
    """

    request: int
    shard: int
    lengths: tuple[int, ...]


class DropTexts(msgspec.Struct, frozen=True, tag=True):
    """Nobody wants the vectors of these texts any more; not answered, they may be done already."""

    request: int


class Tune(msgspec.Struct, frozen=True, tag=True):
    """Sets how passes run from now on; Shards that are loaded keep what they had of `compiles`."""

    threads: int
    """Threads that a pass on the CPU may use."""
    decode_groups: int = 1
    """A Head Worker's Sessions are kept in so many groups, so that as many Hops are busy."""
    compiles: bool = True
    """Whether Decode Steps may be compiled."""


class DeviceProbed(msgspec.Struct, frozen=True, tag=True):
    """The device's facts; bytes of free and total memory, speed in layer-tokens per second.

    A KV Block holds `block_positions`; each Layer has `scratch_blocks` beside those of Sessions;
    `quantizations` are the Variants that run here; measuring all this took `seconds`.
    """

    device: str
    name: str
    free_bytes: int
    total_bytes: int
    tokens_per_second: float
    benchmark_model: str
    block_positions: int
    quantizations: tuple[str, ...] = ()
    prefill_tokens_per_second: float = 0.0
    memory_bytes_per_second: float = 0.0
    seconds: float = 0.0
    scratch_blocks: int = 0


class LoadProgressed(msgspec.Struct, frozen=True, tag=True):
    """How far a load has come."""

    shard: int
    bytes_done: int
    bytes_total: int


class LayersLoaded(msgspec.Struct, frozen=True, tag=True):
    """The Layers are on the device; `layer_bytes` is what they take there, without the ends."""

    shard: int
    start: int
    end: int
    hidden_size: int
    layer_bytes: int


class LayersMeasured(msgspec.Struct, frozen=True, tag=True):
    """Tokens per second through one loaded Layer; zeros where they could not be measured."""

    shard: int
    decode_tokens_per_second: float
    prefill_tokens_per_second: float


class LoadFailed(msgspec.Struct, frozen=True, tag=True):
    """The Layers could not be loaded; nothing of them stays on the device."""

    shard: int
    start: int
    end: int
    reason: str


class LayersDropped(msgspec.Struct, frozen=True, tag=True):
    """The memory is free again."""

    shard: int
    start: int
    end: int


class StepResult(msgspec.Struct, frozen=True, array_like=True):
    """One segment of a Batch that has run; `hidden_bytes` of the payload are its own, in order."""

    session: int
    epoch: Epoch
    start: int
    tokens: int
    flags: int
    hidden_bytes: int
    token_id: int | None
    last_hop: int | None = None
    logprobs: TokenLogprobs | None = None


class Stepped(msgspec.Struct, frozen=True, tag=True):
    """A Batch has run; `cpu_seconds` is the engine process's own CPU time for this step."""

    results: tuple[StepResult, ...]
    cpu_seconds: float
    wall_seconds: float
    was_compiled: bool = False


class TextsEncoded(msgspec.Struct, frozen=True, tag=True):
    """The payload is a vector for each text, row-major, as little-endian float32."""

    request: int


class EncodeFailed(msgspec.Struct, frozen=True, tag=True):
    """The texts could not be encoded."""

    request: int
    reason: str


class Noted(msgspec.Struct, frozen=True, tag=True):
    """Something for the daemon's log."""

    event: str
    facts: dict[str, str | int | float]
    is_warning: bool = False


class SessionFailed(msgspec.Struct, frozen=True, tag=True):
    """A Session's segment could not be run; the Session is closed."""

    session: int
    reason: str
    code: str = ENGINE_FAILED


Command = (
    ProbeDevice
    | LoadLayers
    | MeasureLayers
    | DropLayers
    | OpenSession
    | ArmSession
    | ExtendSession
    | RunSegment
    | CloseSession
    | TruncateSession
    | SizePool
    | EncodeTexts
    | DropTexts
    | Tune
)
Event = (
    DeviceProbed
    | LoadProgressed
    | LayersLoaded
    | LayersMeasured
    | LoadFailed
    | LayersDropped
    | Stepped
    | TextsEncoded
    | EncodeFailed
    | Noted
    | SessionFailed
)
