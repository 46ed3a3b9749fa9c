"""Bytes that no honest Peer sends: cut, changed or mixed frames, and ones that lie about size."""

import struct

import msgspec
import zstandard
from hypothesis import strategies as st

from meshnet_common.protocol.bodies import (
    ActivationsHeader,
    Body,
    ChosenToken,
    CloseBody,
    ErrorBody,
    OpenBody,
    OpenedBody,
    PingBody,
    PongBody,
    ProgressBody,
    ReplayBody,
    TokensBody,
    to_frame,
)
from meshnet_common.protocol.frames import (
    FLAG_BYTE_PLANES,
    FLAG_ZSTD,
    KNOWN_FLAGS,
    MAX_PAYLOAD_BYTES,
    PREFIX_BYTES,
    Frame,
    FrameKind,
    encode_frame,
)
from meshnet_common.protocol.sampling import History, Sampling, TokenLogprobs
from tests.common.builders import activations, segment, ticket, token_of

EPOCH = (1, 0)
SAMPLING = Sampling(temperature=0.5, top_p=0.9, seed=1, logit_bias=((7, -1.5),))
HISTORY = History(answer_start=3, answer_ids=(7, 8), prompt_ids=(4, 5, 6))
BODIES: tuple[Body, ...] = (
    activations(segment(tokens=2), segment(2, session_id="s2")),
    activations(segment(tokens=400)),
    TokensBody(tokens=(ChosenToken("s1", EPOCH, 7, 42),)),
    TokensBody(tokens=(ChosenToken("s1", EPOCH, 7, 42, TokenLogprobs(-0.5, ((42, -0.5),))),)),
    OpenBody(ticket=token_of(ticket()), max_positions=9, sampling=SAMPLING, history=HISTORY),
    OpenBody(ticket="a.b.c", max_positions=9, held=(1,), kept=(1,)),
    OpenedBody(session_id="s1", epoch=EPOCH, held=(0, 0), credits=8),
    CloseBody(session_id="s1", epoch=EPOCH),
    ErrorBody(session_id="s1", code="c", message="m", worker_id="w"),
    ProgressBody(session_id="s1", epoch=EPOCH, position=128),
    ReplayBody(session_id="s1", epoch=EPOCH, start=0, tokens=9, last_hop=1),
    PingBody(nonce=5),
    PongBody(nonce=5, oldest_step_seconds=0.25),
)
LONG = to_frame(BODIES[3])
FRAMES = (
    *(encode_frame(to_frame(body)) for body in BODIES),
    # As one that no header would hold travels.
    encode_frame(Frame(LONG.kind, 0, b"", LONG.header)),
)

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)
    ),
    max_leaves=8,
)


def _fields() -> st.SearchStrategy[bytes]:
    names = sorted(
        {name for body in BODIES for name in getattr(body, "__struct_fields__", ())}
        | set(ActivationsHeader.__struct_fields__)
    )
    return st.dictionaries(st.sampled_from(names), VALUES, max_size=8).map(msgspec.msgpack.encode)


@st.composite
def changed(draw: st.DrawFn, data: bytes) -> bytes:
    """Some bytes of it are others, or gone, or new."""
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(data)))
        size = draw(st.integers(0, 8))
        data = data[:place] + draw(st.binary(max_size=8)) + data[place + size :]
    return data


LAID_OUT = st.builds(
    Frame,
    st.sampled_from(FrameKind),
    st.integers(0, KNOWN_FLAGS),
    st.binary(max_size=80)
    | _fields()
    | st.sampled_from(FRAMES).map(lambda wire: wire[PREFIX_BYTES:]),
    st.binary(max_size=64),
).map(encode_frame)
JUNK = st.one_of(
    st.binary(max_size=200),
    st.sampled_from(FRAMES).flatmap(changed),
    LAID_OUT,
    LAID_OUT.flatmap(changed),
    st.sampled_from(FRAMES),
)


def _prefix(payload_bytes: int, kind: int = FrameKind.ACTIVATIONS, flags: int = 0) -> bytes:
    return struct.pack("<4sBBHII", b"MNF1", kind, flags, 0xFFFF, payload_bytes, 0)


def _bomb(flags: int) -> bytes:
    """256 MiB of zeros in a few kilobytes, for two positions."""
    packed = zstandard.ZstdCompressor().compress(bytes(256 << 20))
    header = ActivationsHeader((segment(tokens=2),), 4, "float32")
    frame = Frame(FrameKind.ACTIVATIONS, flags, msgspec.msgpack.encode(header), packed)
    return encode_frame(frame)


def _huge_list(name: str, kind: FrameKind) -> bytes:
    header = b"\x81" + msgspec.msgpack.encode(name) + b"\xdd\xff\xff\xff\xff"
    return encode_frame(Frame(kind, 0, header, b""))


def greedy_frames() -> dict[str, bytes]:
    """Frames that ask for much more memory than they have bytes."""
    return {
        "a huge payload": _prefix(0xFFFF_FFFF),
        "the largest payload": _prefix(MAX_PAYLOAD_BYTES),
        "a bomb": _bomb(FLAG_ZSTD),
        "a bomb in planes": _bomb(FLAG_ZSTD | FLAG_BYTE_PLANES),
        "a huge list of segments": _huge_list("segments", FrameKind.ACTIVATIONS),
        "a huge list of tokens": _huge_list("tokens", FrameKind.TOKENS),
        "a huge list of ids": encode_frame(
            Frame(FrameKind.OPEN, 0, b"", b"\x81\xa7history\xdd\xff\xff\xff\xff")
        ),
        "a huge list of lengths": _huge_list("held", FrameKind.OPEN),
        "deep nesting": encode_frame(
            Frame(FrameKind.PING, 0, b"\x81\xa1x" + b"\x91" * 60_000, b"")
        ),
    }
