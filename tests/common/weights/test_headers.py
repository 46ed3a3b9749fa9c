import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.weights.errors import HeaderError
from meshnet_common.weights.headers import (
    MAX_HEADER_BYTES,
    MAX_TENSORS,
    PlacedTensor,
    TensorEntry,
    header_bytes,
    parse_header,
    place_tensors,
    write_header,
)
from tests.tracker.presets.checkpoints import header_of


def test_a_header_becomes_its_tensors_by_name() -> None:
    header, weight_bytes = header_of({"b": (2, 3), "a": (4,)})
    assert parse_header(header, 8 + len(header) + weight_bytes) == (
        TensorEntry("a", "BF16", (4,)),
        TensorEntry("b", "BF16", (2, 3)),
    )


def test_a_scalar_has_one_element() -> None:
    assert TensorEntry("s", "F32", ()).elements == 1


@pytest.mark.parametrize(
    ("prefix", "file_bytes", "reason"),
    [
        (b"abc", 3, "only 3 bytes"),
        (struct.pack("<Q", 0), 8, "claims 0 bytes"),
        (struct.pack("<Q", MAX_HEADER_BYTES + 1), 2**40, "allowed are"),
        (struct.pack("<Q", 2**63), 100, "allowed are"),
        (struct.pack("<Q", 93), 100, "but the file has 100"),
        (b"version https://git-lfs"[:8], 130, "git lfs pull"),
    ],
)
def test_an_absurd_length_is_refused_before_anything_is_read(
    prefix: bytes, file_bytes: int, reason: str
) -> None:
    with pytest.raises(HeaderError, match=reason):
        header_bytes(prefix, file_bytes)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": "no", "data_offsets": [0, 4]},
        {"shape": [1], "data_offsets": [0, 4]},
        17,
    ],
)
def test_an_entry_of_another_shape_is_refused(entry: object) -> None:
    with pytest.raises(HeaderError):
        parse_header(json.dumps({"a": entry}).encode(), 10_000)


def test_a_file_that_ends_before_its_weights_is_refused() -> None:
    header, weight_bytes = header_of({"a": (4,)})
    with pytest.raises(HeaderError, match="3 bytes of weights are missing"):
        parse_header(header, 8 + len(header) + weight_bytes - 3)


@given(st.binary(max_size=200))
def test_junk_raises_one_error_type(junk: bytes) -> None:
    try:
        parse_header(junk, 1000)
    except HeaderError:
        return
    assert json.loads(junk) in ({}, {"__metadata__": None})


def shaped(shape: bytes) -> bytes:
    return b'{"a": {"dtype": "U8", "shape": [' + shape + b'], "data_offsets": [0, 4]}}'


def entries(*offsets: tuple[int, int]) -> bytes:
    """One-byte-wide tensors that claim to lie there."""
    return json.dumps(
        {
            f"t{place}": {"dtype": "U8", "shape": [end - start], "data_offsets": [start, end]}
            for place, (start, end) in enumerate(offsets)
        }
    ).encode()


def test_tensors_are_placed_in_their_file_in_order() -> None:
    text = entries((4, 6), (0, 4))
    first, second = place_tensors(text, 1000)
    assert (first.entry.name, first.start, first.size_bytes) == ("t1", 8 + len(text), 4)
    assert (second.entry.name, second.end) == ("t0", 8 + len(text) + 6)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (entries((0, 4), (3, 5)), "overlap"),
        (entries((0, 4), (0, 4)), "overlap"),
        (entries((0, 5000)), "cut short"),
        (b'{"a": {"dtype": "U8", "shape": [2], "data_offsets": [4, 2]}}', r"lies at \[4, 2\)"),
        (b'{"a": {"dtype": "U8", "shape": [2], "data_offsets": [-2, 0]}}', r"lies at \[-2, 0\)"),
        (b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 2]}}', "2 bytes for"),
        (b'{"a":1' + b',"b":1' * (5 * MAX_TENSORS) + b"}", "more than"),
        (b"[" * 100_000, "JSON"),
        (shaped(b"1" + b",1" * 20), "absurd shape"),
        (shaped(b"999999999999999999"), "absurd shape"),
        (shaped(b"1" + b",9" * (16 * MAX_TENSORS)), "more than"),
    ],
    ids=[
        "overlap",
        "same place",
        "beyond",
        "backwards",
        "before",
        "wrong size",
        "many",
        "deep",
        "many dimensions",
        "a long dimension",
        "commas",
    ],
)
def test_a_hostile_header_is_refused(text: bytes, reason: str) -> None:
    with pytest.raises(HeaderError, match=reason):
        place_tensors(text, 1000)


def test_what_is_written_can_be_read_and_begins_at_a_multiple_of_eight() -> None:
    placed = place_tensors(entries((0, 4), (4, 6)), 1000)
    header = write_header(placed)
    assert len(header) % 8 == 0
    length = header_bytes(header[:8], 10_000)
    again = place_tensors(header[8:], len(header) + 6)
    assert (8 + length, [t.entry for t in again]) == (len(header), [t.entry for t in placed])
    assert again[1] == PlacedTensor(placed[1].entry, len(header) + 4, len(header) + 6)
