import random
import struct
import tracemalloc

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.errors import ProtocolError
from meshnet_common.protocol.frames import FLAG_BYTE_PLANES, FLAG_ZSTD
from meshnet_common.protocol.payload import pack_payload, unpack_payload

MIB = 1024 * 1024
PLANES = FLAG_ZSTD | FLAG_BYTE_PLANES
WIDTHS = pytest.mark.parametrize("width", [2, 4], ids=["16 bits", "32 bits"])


def compressed(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def likely_activations(count: int) -> bytes:
    noise = random.Random(5)
    return struct.pack(f"<{count}f", *(noise.gauss(0, 1) for _ in range(count)))


@given(st.binary(max_size=400), st.sampled_from([2, 4]))
def test_any_numbers_survive_the_wire(data: bytes, width: int) -> None:
    raw = data[: len(data) // width * width]
    flags, wire = pack_payload(raw, width)
    assert unpack_payload(flags, wire, width, len(raw)) == raw


@given(st.integers(1, 200), st.binary(min_size=4, max_size=4), st.sampled_from([2, 4]))
def test_numbers_that_repeat_survive_the_wire(count: int, number: bytes, width: int) -> None:
    raw = number[:width] * count
    flags, wire = pack_payload(raw, width)
    assert unpack_payload(flags, wire, width, len(raw)) == raw


@WIDTHS
def test_nothing_at_all_survives_the_wire(width: int) -> None:
    flags, wire = pack_payload(b"", width)
    assert unpack_payload(flags, wire, width, 0) == b""


def test_hidden_states_shrink_by_their_top_plane() -> None:
    raw = likely_activations(4096)
    flags, wire = pack_payload(raw, 4)
    assert flags == PLANES
    assert len(wire) < 0.9 * len(raw)


def test_noise_travels_raw() -> None:
    raw = random.Random(1).randbytes(4096)
    assert pack_payload(raw, 2) == (0, raw)


def test_zstd_without_planes_is_read_too() -> None:
    assert unpack_payload(FLAG_ZSTD, compressed(b"ab" * 50), 2, 100) == b"ab" * 50


@pytest.mark.parametrize("size", [0, 3, 5, 400])
def test_a_raw_payload_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError):
        unpack_payload(0, bytes(size), 2, 4)


@WIDTHS
def test_a_truncated_payload_is_refused(width: int) -> None:
    raw = likely_activations(64)
    flags, wire = pack_payload(raw, width)
    for size in range(len(wire)):
        with pytest.raises(ProtocolError):
            unpack_payload(flags, wire[:size], width, len(raw))


@pytest.mark.parametrize("flags", [FLAG_ZSTD, PLANES])
@given(junk=st.binary(max_size=300), count=st.integers(0, 100))
def test_junk_raises_nothing_but_a_protocol_error(flags: int, junk: bytes, count: int) -> None:
    try:
        raw = unpack_payload(flags, junk, 2, 2 * count)
    except ProtocolError:
        return
    assert len(raw) == 2 * count


@pytest.mark.parametrize("declared", [99, 101, 10 * MIB])
def test_a_size_that_the_header_did_not_promise_is_refused(declared: int) -> None:
    with pytest.raises(ProtocolError):
        unpack_payload(FLAG_ZSTD, compressed(bytes(declared)), 2, 100)


def test_a_bomb_is_refused_before_it_is_inflated() -> None:
    bomb = compressed(bytes(256 * MIB))
    assert len(bomb) < 64 * 1024
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            unpack_payload(FLAG_ZSTD, bomb, 2, 100)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_a_frame_that_lies_about_its_size_is_refused() -> None:
    honest = compressed(bytes(4096))
    # The size stands behind magic and descriptor: 256 + 3840 in two bytes.
    assert honest[5:7] == struct.pack("<H", 4096 - 256)
    lying = honest[:5] + struct.pack("<H", 300 - 256) + honest[7:]
    with pytest.raises(ProtocolError):
        unpack_payload(FLAG_ZSTD, lying, 2, 300)


def test_a_size_left_open_is_refused() -> None:
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(100))
    with pytest.raises(ProtocolError):
        unpack_payload(FLAG_ZSTD, unsized, 2, 100)


@pytest.mark.parametrize(
    "second", [compressed(bytes(50)), compressed(b""), b"\0"], ids=["frame", "empty frame", "byte"]
)
def test_what_follows_the_first_zstd_frame_is_refused(second: bytes) -> None:
    with pytest.raises(ProtocolError):
        unpack_payload(FLAG_ZSTD, compressed(bytes(50)) + second, 2, 50)


def test_a_skippable_zstd_frame_is_refused() -> None:
    skippable = struct.pack("<II", 0x184D2A50, 4) + bytes(4)
    with pytest.raises(ProtocolError):
        unpack_payload(FLAG_ZSTD, skippable, 2, 4)


def test_a_window_larger_than_ours_is_never_allocated() -> None:
    size_and_window = 0b1000_0000, (30 - 10) << 3
    header = struct.pack("<IBBI", 0xFD2FB528, *size_and_window, 100)
    with pytest.raises(ProtocolError, match="too much memory"):
        unpack_payload(FLAG_ZSTD, header + bytes(2), 2, 100)


@pytest.mark.parametrize("raw_bytes", [101, 10_000])
def test_planes_that_cannot_fill_the_size_are_refused(raw_bytes: int) -> None:
    _, wire = pack_payload(bytes(100), 2)
    with pytest.raises(ProtocolError):
        unpack_payload(PLANES, wire, 2, raw_bytes)


def test_the_largest_frame_that_may_be_sent_can_be_read() -> None:
    raw = bytes(64 * MIB)
    flags, wire = pack_payload(raw, 4)
    assert unpack_payload(flags, wire, 4, len(raw)) == raw
