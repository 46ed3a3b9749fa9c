"""What frames say: one struct per kind, and the two functions that turn them into frames and back.

An epoch is (incarnation, rollback): the first is minted by the Tracker with each Route, the second
counted by the Head Worker. A lower epoch than the Hop's is stale, a higher one truncates and is
adopted; so a Head Worker that was replaced and wakes up can write nothing.
"""

from typing import Annotated, Any

import msgspec

from meshnet_common.errors import ProtocolError
from meshnet_common.presets import DTYPE_BYTES
from meshnet_common.protocol.frames import MAX_HEADER_BYTES, MAX_PAYLOAD_BYTES, Frame, FrameKind
from meshnet_common.protocol.payload import pack_payload, unpack_payload
from meshnet_common.protocol.sampling import History, Sampling, TokenLogprobs

MAX_SEGMENT_TOKENS = 2048
MAX_FRAME_SEGMENTS = 1024
MAX_HIDDEN_SIZE = 65536

MAX_ID_CHARS = 64
MAX_CHOICES = 128
"""Sessions of one ticket."""
MAX_LONG_BODY_BYTES = 8 * 1024 * 1024

Epoch = tuple[int, int]
Id = Annotated[str, msgspec.Meta(max_length=MAX_ID_CHARS)]
"""Names a Session or a Worker; a longer one is no frame's that any Worker sends."""

SEGMENT_FILL = 1
"""Refills a replaced Hop: its last one computes and keeps KV, forwards nothing, and tells."""
SEGMENT_SAMPLE = 2
"""The last position of this segment wants a token from the Tail Worker."""
SEGMENT_PREFILL = 4
"""Part of a prompt: all of it travels on one link, so that no chunk overtakes another."""


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """A run of positions of one Session: [start, start + tokens)."""

    session_id: Id
    epoch: Epoch
    start: int
    tokens: int
    flags: int = 0
    token_ids: tuple[int, ...] | None = None
    last_hop: int | None = None
    """With SEGMENT_FILL, the place of the Hop where it ends; None is where it arrives."""


class ActivationsHeader(msgspec.Struct, frozen=True):
    """Hidden states of every segment, in order; the payload is row-major little-endian.

    A `hidden_size` of 0 carries none: the first Hop starts from the token ids of the segments.
    """

    segments: tuple[Segment, ...]
    hidden_size: int
    dtype: str


class ActivationFrame(msgspec.Struct, frozen=True):
    """An Activation Frame with its payload decoded: `sum(tokens) x hidden_size` numbers."""

    header: ActivationsHeader
    hidden: bytes


class ChosenToken(msgspec.Struct, frozen=True, array_like=True):
    """The token that the Tail Worker chose for one position of one Session."""

    session_id: Id
    epoch: Epoch
    position: int
    token_id: int
    logprobs: TokenLogprobs | None = None
    """Where its Session asked for them."""


class TokensBody(msgspec.Struct, frozen=True):
    """A Token Frame; positions count prompt and answer from 0."""

    tokens: tuple[ChosenToken, ...]


class OpenBody(msgspec.Struct, frozen=True, kw_only=True):
    """Opens a Session on a Hop, and travels down the Route; a repeated one reserves more.

    The Head Worker sends the Tail Worker a second one directly, with `sampling`: the Hops between
    learn neither the prompt nor how its answer is drawn.
    """

    ticket: str
    choice: Annotated[int, msgspec.Meta(ge=0, lt=MAX_CHOICES)] = 0
    """Which of the ticket's Sessions this is: each choice of an answer is one."""
    max_positions: int
    """Positions of prompt plus answer for which every Hop reserves KV."""
    held: tuple[int, ...] = ()
    """Positions of which each Hop so far has the KV."""
    kept: tuple[int, ...] = ()
    """Positions of which each Hop so far could send again what it sent."""
    sampling: Sampling | None = None
    history: History | None = None
    """With `sampling`, where draws depend on it."""
    rollback: int = 0
    """With the ticket's incarnation the epoch of this opening: a higher one opens anew."""
    capacity: int = 0
    """Positions that fit into empty pools of every Hop so far; 0 before the first."""


class OpenedBody(msgspec.Struct, frozen=True, kw_only=True):
    """The Tail Worker's answer to the Head Worker: every Hop has reserved and is linked."""

    session_id: Id
    epoch: Epoch
    held: tuple[int, ...]
    credits: int
    """Segments that the Head Worker may have in flight."""
    kept: tuple[int, ...] = ()
    capacity: int = 0
    """Positions of the longest Session that this Route could hold alone; 0 if nobody said."""


class CloseBody(msgspec.Struct, frozen=True, kw_only=True):
    """Frees a Session's KV on a Hop, and travels down the Route."""

    session_id: Id
    epoch: Epoch


class KvFigures(msgspec.Struct, frozen=True, kw_only=True):
    """KV Blocks in each Layer: missing, free, and in all; `capacity` is the total in positions."""

    needed: int
    free: int
    total: int
    capacity: int


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of one Session, told to its Head Worker; `worker_id` names who is at fault.

    With `epoch`, the fault is that of an opening no newer than this.
    """

    session_id: Id
    code: str
    message: str
    worker_id: Id
    epoch: Epoch | None = None
    kv: KvFigures | None = None


class ProgressBody(msgspec.Struct, frozen=True, kw_only=True):
    """A segment that wants no token has come to its end: one credit goes back."""

    session_id: Id
    epoch: Epoch
    position: int
    waits: bool = False
    """Only a sign of life instead: a segment waits for its turn on some Hop, no credit comes."""


class ReplayBody(msgspec.Struct, frozen=True, kw_only=True):
    """Asks a Hop to send again what it sent of [start, start + tokens), to refill the next one."""

    session_id: Id
    epoch: Epoch
    start: int
    tokens: int
    last_hop: int


class PingBody(msgspec.Struct, frozen=True, kw_only=True):
    """Asks a Peer whether it lives."""

    nonce: int


class PongBody(msgspec.Struct, frozen=True, kw_only=True):
    """Answers a ping with the age, in seconds, of the oldest unfinished engine step."""

    nonce: int
    oldest_step_seconds: float
    overdue_seconds: float = 0.0
    """How much longer the running step takes than its size explains."""


Body = (
    ActivationFrame
    | TokensBody
    | OpenBody
    | OpenedBody
    | CloseBody
    | ErrorBody
    | ProgressBody
    | ReplayBody
    | PingBody
    | PongBody
)

_KINDS: dict[type, FrameKind] = {
    TokensBody: FrameKind.TOKENS,
    OpenBody: FrameKind.OPEN,
    OpenedBody: FrameKind.OPENED,
    CloseBody: FrameKind.CLOSE,
    ErrorBody: FrameKind.ERROR,
    ProgressBody: FrameKind.PROGRESS,
    ReplayBody: FrameKind.REPLAY,
    PingBody: FrameKind.PING,
    PongBody: FrameKind.PONG,
}
_MAY_BE_LONG = frozenset({FrameKind.OPEN, FrameKind.TOKENS})
"""Histories, grammars and alternatives: what no header holds travels as the payload instead."""
_encoder = msgspec.msgpack.Encoder()
_activations_decoder = msgspec.msgpack.Decoder(ActivationsHeader)
_decoders: dict[FrameKind, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(body) for body, kind in _KINDS.items()
}


def to_frame(body: Body) -> Frame:
    """Encode a body; only activations, and what is too long for a header, have a payload."""
    if isinstance(body, ActivationFrame):
        flags, payload = pack_payload(body.hidden, DTYPE_BYTES[body.header.dtype])
        return Frame(FrameKind.ACTIVATIONS, flags, _encoder.encode(body.header), payload)
    kind, encoded = _KINDS[type(body)], _encoder.encode(body)
    if len(encoded) > MAX_HEADER_BYTES and kind in _MAY_BE_LONG:
        return Frame(kind, 0, b"", encoded)
    return Frame(kind, 0, encoded, b"")


def from_frame(frame: Frame) -> Body:
    """Decode a frame into its body; raises ProtocolError for a malformed one."""
    try:
        if frame.kind is FrameKind.ACTIVATIONS:
            return _decode_activations(frame)
        is_long = not frame.header and frame.kind in _MAY_BE_LONG
        if is_long and len(frame.payload) > MAX_LONG_BODY_BYTES:
            raise ProtocolError(f"A body of {len(frame.payload)} bytes is too long.")
        encoded = frame.payload if is_long else frame.header
        body: Body = _decoders[frame.kind].decode(encoded)
    except (msgspec.DecodeError, RecursionError) as error:
        # Deep nesting in a field that is passed over is a RecursionError.
        raise ProtocolError(f"A header of kind {frame.kind.name} is malformed: {error}.") from error
    if frame.payload and not is_long:
        raise ProtocolError(f"A frame of kind {frame.kind.name} has no payload.")
    return body


def _decode_activations(frame: Frame) -> ActivationFrame:
    header = _activations_decoder.decode(frame.header)
    width = DTYPE_BYTES.get(header.dtype)
    if width is None:
        raise ProtocolError(f"Activations in {header.dtype!r} are unknown.")
    lowest_size = 0 if all(segment.token_ids for segment in header.segments) else 1
    if not lowest_size <= header.hidden_size <= MAX_HIDDEN_SIZE:
        raise ProtocolError(f"A hidden size of {header.hidden_size} is out of range.")
    if not 0 < len(header.segments) <= MAX_FRAME_SEGMENTS:
        raise ProtocolError(f"{len(header.segments)} segments in one frame are out of range.")
    for segment in header.segments:
        _check_segment(segment)
    positions = sum(segment.tokens for segment in header.segments)
    raw_bytes = positions * header.hidden_size * width
    if raw_bytes > MAX_PAYLOAD_BYTES:
        raise ProtocolError(f"Activations of {raw_bytes} bytes are over {MAX_PAYLOAD_BYTES}.")
    return ActivationFrame(header, unpack_payload(frame.flags, frame.payload, width, raw_bytes))


def _check_segment(segment: Segment) -> None:
    if not 0 < segment.tokens <= MAX_SEGMENT_TOKENS:
        raise ProtocolError(f"A segment of {segment.tokens} tokens is out of range.")
    if segment.start < 0 or min(segment.epoch) < 0:
        raise ProtocolError("A segment has a negative position or epoch.")
    if segment.last_hop is not None and segment.last_hop < 0:
        raise ProtocolError(f"A segment cannot end at Hop {segment.last_hop}.")
    if segment.token_ids is not None and len(segment.token_ids) != segment.tokens:
        raise ProtocolError(f"A segment of {segment.tokens} tokens has {len(segment.token_ids)}.")
