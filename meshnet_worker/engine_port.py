"""What the daemon and its engine process say to each other over a socket pair; pure bytes.

Each message is two lengths, a MessagePack struct and raw bytes: hidden states, row-major, in the
Shard's dtype. Both ends run the same release, so this format has no version. Sessions and Shards
are small integers here, chosen by the daemon.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from meshnet_common.protocol.bodies import Epoch

LENGTHS = struct.Struct("<II")
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


class Draw(msgspec.Struct, frozen=True, array_like=True):
    """How to draw the token after a segment's last position."""

    temperature: float
    top_p: float
    seed: int


class RunSegment(msgspec.Struct, frozen=True, tag=True):
    """Runs positions [start, start + tokens) of a Session; answered within a Stepped.

    `token_ids` when the Session's Layers start at 0, else the payload is `tokens` rows of hidden
    states. With `draw`, the answer is a token; without, hidden states (or nothing, at the end of
    the model).
    """

    session: int
    epoch: Epoch
    start: int
    tokens: int
    flags: int = 0
    """The segment's own flags, given back with its result."""
    token_ids: tuple[int, ...] | None = None
    draw: Draw | None = None
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


class Stepped(msgspec.Struct, frozen=True, tag=True):
    """A Batch has run; `cpu_seconds` is the engine process's own CPU time for this step."""

    results: tuple[StepResult, ...]
    cpu_seconds: float
    wall_seconds: float
    was_compiled: bool = False


class Noted(msgspec.Struct, frozen=True, tag=True):
    """Something for the daemon's log."""

    event: str
    facts: dict[str, str | int | float]
    is_warning: bool = False


class SessionFailed(msgspec.Struct, frozen=True, tag=True):
    """A Session's segment could not be run; the Session is closed."""

    session: int
    reason: str


Command = (
    ProbeDevice
    | LoadLayers
    | MeasureLayers
    | DropLayers
    | OpenSession
    | ExtendSession
    | RunSegment
    | CloseSession
    | TruncateSession
    | SizePool
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
    | Noted
    | SessionFailed
)


class Message(NamedTuple):
    """A command or an event, with its raw bytes."""

    body: Command | Event
    payload: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Command | Event] = msgspec.msgpack.Decoder(Command | Event)


def encode_message(body: Command | Event, payload: bytes = b"") -> bytes:
    """Lay a message out for the socket."""
    header = _encoder.encode(body)
    return b"".join((LENGTHS.pack(len(header), len(payload)), header, payload))


class MessageParser:
    """Cuts the byte stream of either end into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def messages(self) -> Iterator[Message]:
        while len(self._buffer) >= LENGTHS.size:
            header_bytes, payload_bytes = LENGTHS.unpack_from(self._buffer)
            header_end = LENGTHS.size + header_bytes
            end = header_end + payload_bytes
            if len(self._buffer) < end:
                return
            body = _decoder.decode(self._buffer[LENGTHS.size : header_end])
            payload = bytes(self._buffer[header_end:end])
            del self._buffer[:end]
            yield Message(body, payload)
