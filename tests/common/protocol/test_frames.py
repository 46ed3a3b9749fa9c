import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.errors import ProtocolError
from meshnet_common.protocol.frames import (
    KNOWN_FLAGS,
    MAX_HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    PREFIX_BYTES,
    Frame,
    FrameKind,
    FrameParser,
    decode_frame,
    encode_frame,
)

FRAMES = st.builds(
    Frame,
    st.sampled_from(FrameKind),
    st.integers(0, KNOWN_FLAGS),
    st.binary(max_size=80),
    st.binary(max_size=200),
)
FRAME = Frame(FrameKind.ACTIVATIONS, 1, b"header", b"payload")
WIRE = encode_frame(FRAME)
KIND_AT, FLAGS_AT, PAYLOAD_LENGTH_AT, CHECKSUM_AT = 4, 5, 8, 12


def changed(offset: int, data: bytes) -> bytes:
    return WIRE[:offset] + data + WIRE[offset + len(data) :]


def parse(data: bytes) -> list[Frame]:
    parser = FrameParser()
    parser.feed(data)
    return list(parser.frames())


@given(FRAMES)
def test_a_frame_survives_the_wire(frame: Frame) -> None:
    assert decode_frame(encode_frame(frame)) == frame


def test_the_layout_is_the_protocols() -> None:
    magic, kind, flags, header_bytes, payload_bytes = struct.unpack_from("<4sBBHI", WIRE)
    assert (magic, kind, flags, header_bytes, payload_bytes) == (b"MNF1", 1, 1, 6, 7)
    assert WIRE[PREFIX_BYTES:] == b"headerpayload"


def test_the_checksum_is_xxh32() -> None:
    wire = encode_frame(Frame(FrameKind.PING, 0, b"", b""))
    # The specification's own value for no bytes and seed 0.
    assert wire[CHECKSUM_AT:PREFIX_BYTES] == struct.pack("<I", 0x02CC5D05)


@given(st.lists(FRAMES, max_size=5), st.data())
def test_frames_survive_any_chunking(frames: list[Frame], data: st.DataObject) -> None:
    wire = b"".join(encode_frame(frame) for frame in frames)
    parser = FrameParser()
    parsed: list[Frame] = []
    while wire:
        size = data.draw(st.integers(1, len(wire)))
        parser.feed(wire[:size])
        wire = wire[size:]
        parsed += parser.frames()
    assert parsed == frames


@given(st.integers(0, len(WIRE) - 1))
def test_a_truncated_frame_is_refused_whole_and_waited_for_in_a_stream(size: int) -> None:
    with pytest.raises(ProtocolError):
        decode_frame(WIRE[:size])
    assert parse(WIRE[:size]) == []


def test_trailing_bytes_are_refused() -> None:
    with pytest.raises(ProtocolError):
        decode_frame(WIRE + b"\0")


@given(st.binary(max_size=200))
def test_junk_is_refused(junk: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_frame(junk)


@given(st.binary(min_size=PREFIX_BYTES, max_size=200).filter(lambda b: not b.startswith(b"MNF1")))
def test_junk_in_a_stream_is_refused(junk: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse(junk)


@pytest.mark.parametrize(
    ("offset", "data"),
    [
        pytest.param(0, b"MNF2", id="another version"),
        pytest.param(KIND_AT, b"\0", id="kind 0"),
        pytest.param(KIND_AT, b"\x0b", id="kind 11"),
        pytest.param(FLAGS_AT, b"\x04", id="an unknown flag"),
        pytest.param(CHECKSUM_AT, b"\0\0\0\0", id="a wrong checksum"),
        pytest.param(len(WIRE) - 1, b"?", id="a changed payload"),
        pytest.param(
            PAYLOAD_LENGTH_AT, struct.pack("<I", MAX_PAYLOAD_BYTES + 1), id="an oversized length"
        ),
    ],
)
def test_a_changed_frame_is_refused(offset: int, data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_frame(changed(offset, data))
    with pytest.raises(ProtocolError):
        parse(changed(offset, data))


@given(st.integers(0, len(WIRE) - 1), st.integers(1, 255))
def test_a_flipped_byte_raises_nothing_but_a_protocol_error(offset: int, mask: int) -> None:
    data = changed(offset, bytes([WIRE[offset] ^ mask]))
    try:
        frame = decode_frame(data)
    except ProtocolError:
        return
    # The checksum is the payload's; the decoder of the header guards the rest.
    assert frame.payload == FRAME.payload


@pytest.mark.parametrize("length", [MAX_PAYLOAD_BYTES + 1, 0xFFFF_FFFF])
def test_a_declared_size_costs_no_memory(length: int) -> None:
    data = changed(PAYLOAD_LENGTH_AT, struct.pack("<I", length))
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            parse(data)
        with pytest.raises(ProtocolError):
            decode_frame(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_a_declared_size_within_the_limit_is_not_allocated_ahead() -> None:
    data = changed(PAYLOAD_LENGTH_AT, struct.pack("<I", MAX_PAYLOAD_BYTES))
    tracemalloc.start()
    try:
        assert parse(data) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_a_smaller_limit_may_be_chosen() -> None:
    parser = FrameParser(max_payload_bytes=6)
    parser.feed(WIRE)
    with pytest.raises(ProtocolError):
        list(parser.frames())
    with pytest.raises(ProtocolError):
        decode_frame(WIRE, max_payload_bytes=6)


def test_a_header_over_the_limit_is_never_sent() -> None:
    fits = Frame(FrameKind.OPEN, 0, bytes(MAX_HEADER_BYTES), b"")
    assert decode_frame(encode_frame(fits)) == fits
    with pytest.raises(ProtocolError):
        encode_frame(Frame(FrameKind.OPEN, 0, bytes(MAX_HEADER_BYTES + 1), b""))


def test_a_parser_hands_out_what_came_before_a_bad_frame() -> None:
    parser = FrameParser()
    parser.feed(WIRE + b"junk" * 10)
    frames = parser.frames()
    assert next(frames) == FRAME
    with pytest.raises(ProtocolError):
        next(frames)
