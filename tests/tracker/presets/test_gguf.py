from pathlib import Path

import pytest

from meshnet_common.weights.gguf_header import KINDS, GgufHeader, parse_gguf_header
from meshnet_common.weights.headers import TensorEntry
from meshnet_tracker.presets.checkpoint import Checkpoint, make_preset
from meshnet_tracker.presets.errors import GgufVariantError
from meshnet_tracker.presets.gguf import gguf_variant
from meshnet_tracker.records import PresetRecord
from tests.gguf_files import HIDDEN_SIZE, LAYERS, VOCABULARY, tiny_llama_gguf
from tests.tracker.presets.checkpoints import LLAMA_CONFIG


def record() -> PresetRecord:
    entries = [
        TensorEntry(f"model.layers.{layer}.q.weight", "BF16", (HIDDEN_SIZE, HIDDEN_SIZE))
        for layer in range(LAYERS)
    ]
    embedding = TensorEntry("model.embed_tokens.weight", "BF16", (VOCABULARY, HIDDEN_SIZE))
    config = {**LLAMA_CONFIG, "hidden_size": HIDDEN_SIZE, "vocab_size": VOCABULARY}
    return make_preset(Checkpoint("/models/tiny", config, (*entries, embedding)), "tiny")


@pytest.fixture
def header(tmp_path: Path) -> GgufHeader:
    file = tiny_llama_gguf(tmp_path / "tiny.gguf", "Q8_0")
    return parse_gguf_header(memoryview(file.read_bytes()))


def test_sizes_are_the_files_own_and_plain_tensors_are_held_in_sixteen_bits(
    header: GgufHeader,
) -> None:
    variant = gguf_variant(record(), header, "/m/tiny.gguf", "sha")
    assert (variant.quantization, variant.gguf) == ("q8_0", "/m/tiny.gguf")
    assert variant.gguf_sha256 == "sha"
    assert variant.layer_bytes == (32 * 34 + 32 * 2,) * LAYERS
    assert variant.embedding_bytes == 64 * 34
    # The head shares the embedding's blocks, and a Worker without the embedding needs its own.
    assert variant.head_bytes == 64 * 34 + 32 * 2
    assert variant.wire_dtype == "bfloat16"


def test_layers_of_mixed_kinds_differ_in_size(header: GgufHeader) -> None:
    small = header.tensors["blk.1.attn_q.weight"]._replace(kind=KINDS[3])
    mixed = header._replace(tensors={**header.tensors, small.name: small})
    layers = gguf_variant(record(), mixed, "f", "sha").layer_bytes
    assert (layers[0], layers[1]) == (32 * 34 + 64, 32 * 20 + 64)


def test_other_weights_make_another_digest(header: GgufHeader) -> None:
    digests = {gguf_variant(record(), header, "f", sha256).digest for sha256 in ("one", "other")}
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"general.architecture": "gpt2"}, "architecture is 'gpt2'"),
        ({"llama.block_count": 4}, "not of tiny"),
    ],
)
def test_a_file_of_another_model_is_refused(
    change: dict[str, str | int], reason: str, header: GgufHeader
) -> None:
    with pytest.raises(GgufVariantError, match=reason):
        gguf_variant(record(), header._replace(fields={**header.fields, **change}), "f", "sha")


@pytest.mark.parametrize("name", ["token_embd.weight", "output_norm.weight"])
def test_a_file_without_its_ends_is_refused(name: str, header: GgufHeader) -> None:
    tensors = {key: tensor for key, tensor in header.tensors.items() if key != name}
    with pytest.raises(GgufVariantError, match=name):
        gguf_variant(record(), header._replace(tensors=tensors), "f", "sha")


def test_a_file_without_some_layer_is_refused(header: GgufHeader) -> None:
    tensors = {key: t for key, t in header.tensors.items() if not key.startswith("blk.2.")}
    with pytest.raises(GgufVariantError, match=r"layers \[2\]"):
        gguf_variant(record(), header._replace(tensors=tensors), "f", "sha")


def test_experts_are_refused(header: GgufHeader) -> None:
    experts = header.tensors["blk.0.attn_q.weight"]._replace(name="blk.0.ffn_up_exps.weight")
    tensors = {**header.tensors, experts.name: experts}
    with pytest.raises(GgufVariantError, match="experts"):
        gguf_variant(record(), header._replace(tensors=tensors), "f", "sha")


def test_a_file_of_plain_weights_is_no_variant(tmp_path: Path) -> None:
    file = tiny_llama_gguf(tmp_path / "plain.gguf", "F16")
    with pytest.raises(GgufVariantError, match="F16; register safetensors"):
        gguf_variant(record(), parse_gguf_header(memoryview(file.read_bytes())), "f", "sha")
