import struct
from pathlib import Path

import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader
from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.weights.gguf_header import KINDS, MAGIC, GgufError, parse_gguf_header
from tests.gguf_files import LAYERS, tiny_llama_gguf


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", "Q4_1")


def test_kinds_are_those_of_the_formats_own_package() -> None:
    for number, kind in KINDS.items():
        known = GGMLQuantizationType(number)
        assert (kind.name, *GGML_QUANT_SIZES[known]) == (known.name, *kind[1:])


def test_tensors_lie_where_the_formats_own_reader_finds_them(file: Path) -> None:
    header = parse_gguf_header(memoryview(file.read_bytes()))
    theirs = [
        (t.name, t.tensor_type.name, tuple(t.shape.tolist()[::-1]), t.data_offset, t.n_bytes)
        for t in GGUFReader(file).tensors
    ]
    ours = [(t.name, t.kind.name, t.shape, t.start, t.size_bytes) for t in header.tensors.values()]
    assert ours == theirs


def test_facts_are_read_and_arrays_are_passed_over(file: Path) -> None:
    header = parse_gguf_header(memoryview(file.read_bytes()))
    assert (header.architecture, header.number("block_count")) == ("llama", LAYERS)
    assert not any(key.startswith("tokenizer") for key in header.fields)
    assert header.number("head_count") is None


def test_packed_kinds_are_told_from_plain_ones(file: Path) -> None:
    tensors = parse_gguf_header(memoryview(file.read_bytes())).tensors
    assert tensors["blk.0.attn_q.weight"].is_packed
    assert not tensors["output_norm.weight"].is_packed


@given(st.integers(min_value=0))
def test_a_file_that_is_cut_short_is_refused(file: Path, size: int) -> None:
    data = file.read_bytes()
    last = max(t.start + t.size_bytes for t in parse_gguf_header(memoryview(data)).tensors.values())
    with pytest.raises(GgufError):
        parse_gguf_header(memoryview(data)[: size % last])


@given(st.integers(min_value=4, max_value=500), st.binary(min_size=1, max_size=16))
def test_junk_inside_is_read_or_refused_but_never_believed(
    file: Path, place: int, junk: bytes
) -> None:
    data = bytearray(file.read_bytes())
    data[place : place + len(junk)] = junk
    try:
        header = parse_gguf_header(memoryview(data))
    except GgufError:
        return
    assert all(t.start + t.size_bytes <= len(data) for t in header.tensors.values())


def raw(tensors: int = 0, fields: int = 0, rest: bytes = b"", version: int = 3) -> memoryview:
    return memoryview(MAGIC + struct.pack("<IQQ", version, tensors, fields) + rest)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def entry(shape: tuple[int, ...], kind: int = 0, name: bytes = b"t") -> bytes:
    sizes = struct.pack(f"<{len(shape)}Q", *shape)
    return text(name) + struct.pack("<I", len(shape)) + sizes + struct.pack("<IQ", kind, 0)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (memoryview(b"PK\x03\x04"), "not begin with GGUF"),
        (raw(version=9), "version 9"),
        (raw(tensors=2**60), "claims"),
        (raw(fields=2**60), "claims"),
        (raw(fields=1, rest=text(b"k") + struct.pack("<IIQ", 9, 4, 2**62)), "goes on beyond"),
        (raw(fields=1, rest=text(b"k") + struct.pack("<IIQ", 9, 8, 2**62)), "goes on beyond"),
        (raw(fields=1, rest=text(b"k") + struct.pack("<IIQ", 9, 9, 1)), "unknown type 9"),
        (raw(fields=1, rest=text(b"k" * 300)), "name of 300 bytes"),
        (raw(fields=1, rest=text(b"\xff") + struct.pack("<I", 0)), "not UTF-8"),
        (raw(tensors=1, rest=entry((8,) * 5)), "5 dimensions"),
        (raw(tensors=1, rest=entry((2**40, 2**40))), "shape"),
        (raw(tensors=1, rest=entry((0,))), "shape"),
        (raw(tensors=1, rest=entry((33, 2), kind=8)), "Q8_0 cannot have"),
        (raw(tensors=1, rest=entry((32,), kind=16)), "kind 16; this release unpacks F32"),
        (raw(tensors=1, rest=entry((32,))), "cut short: t is missing"),
        (raw(tensors=2, rest=entry((1,)) * 2 + bytes(64)), "same name"),
    ],
)
def test_a_header_that_lies_is_refused_at_once(data: memoryview, reason: str) -> None:
    with pytest.raises(GgufError, match=reason):
        parse_gguf_header(data)
