import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.weights.errors import HeaderError
from meshnet_common.weights.headers import (
    MAX_HEADER_BYTES,
    TensorEntry,
    header_bytes,
    parse_header,
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
