import pytest

from meshnet_common.weights.errors import ConfigError
from meshnet_common.weights.headers import TensorEntry
from meshnet_tracker.presets.checkpoint import Checkpoint, make_preset
from meshnet_tracker.presets.errors import PresetNameError, QuantizationError
from tests.tracker.presets.checkpoints import LLAMA_CONFIG, llama_tensors


def checkpoint(dtype: str = "BF16", **config: object) -> Checkpoint:
    tensors = tuple(TensorEntry(name, dtype, shape) for name, shape in llama_tensors().items())
    return Checkpoint("/models/tiny", {**LLAMA_CONFIG, **config}, tensors)


def test_the_checkpoints_own_dtype_is_served_and_all_others_are_only_known() -> None:
    record = make_preset(checkpoint("F16"), "tiny")
    assert [v.quantization for v in record.preset.variants] == ["float16"]
    assert record.preset.default_quantization == "float16"
    assert [v.quantization for v in record.unserved] == ["bfloat16", "float32", "int8", "nf4"]


def test_the_first_quantization_asked_for_is_the_default() -> None:
    preset = make_preset(checkpoint(), "tiny", ("float32", "bfloat16", "float32")).preset
    assert preset.default_quantization == "float32"
    assert [v.quantization for v in preset.variants] == ["float32", "bfloat16"]
    assert preset.public_name("bfloat16") == "tiny-bfloat16"


def test_facts_and_source_are_kept() -> None:
    preset = make_preset(checkpoint(), "tiny").preset
    assert (preset.source, preset.architecture) == ("/models/tiny", "LlamaForCausalLM")
    assert (preset.layer_count, preset.hidden_size, preset.context_tokens) == (3, 8, 128)


def test_variants_have_digests_of_their_own() -> None:
    record = make_preset(checkpoint(), "tiny")
    digests = {v.digest for v in (*record.preset.variants, *record.unserved)}
    assert len(digests) == 5
    assert all(len(digest) == 64 for digest in digests)


@pytest.mark.parametrize("quantization", ["int8", "nf4"])
def test_quantized_variants_can_be_served(quantization: str) -> None:
    preset = make_preset(checkpoint(), "tiny", ("bfloat16", quantization)).preset
    assert preset.public_name(quantization) == f"tiny-{quantization}"


@pytest.mark.parametrize(
    "expert",
    [
        TensorEntry("model.layers.0.mlp.experts.gate_up_proj", "BF16", (4, 8, 8)),
        TensorEntry("model.layers.0.mlp.experts.0.up_proj.weight", "BF16", (8, 8)),
        TensorEntry("model.layers.0.moe.input.weight", "BF16", (4, 8, 8)),
    ],
    ids=lambda entry: entry.name,
)
def test_experts_are_not_quantized_and_the_reason_is_told(expert: TensorEntry) -> None:
    plain = checkpoint()
    experts = Checkpoint(plain.source, plain.config, (*plain.tensors, expert))
    with pytest.raises(QuantizationError, match="int8 is not possible for this model: its experts"):
        make_preset(experts, "tiny", ("int8",))
    record = make_preset(experts, "tiny")
    assert [v.quantization for v in record.unserved] == ["float16", "float32"]


@pytest.mark.parametrize("name", ["", "a b", "../x", "x/", "-x", "x\n", "n" * 121])
def test_an_unusable_name_is_refused(name: str) -> None:
    with pytest.raises(PresetNameError):
        make_preset(checkpoint(), name)


def test_a_name_may_have_an_organisation() -> None:
    assert make_preset(checkpoint(), "org/tiny-1.5B").preset.name == "org/tiny-1.5B"


def test_an_absurd_layer_count_is_refused_before_lists_are_made() -> None:
    with pytest.raises(ConfigError, match="at most"):
        make_preset(checkpoint(num_hidden_layers=10**12), "tiny")


BERT_CONFIG = {
    "architectures": ["BertModel"],
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 50,
    "max_position_embeddings": 16,
}
BERT_TENSORS = {
    "embeddings.word_embeddings.weight": (50, 8),
    "embeddings.position_embeddings.weight": (16, 8),
    "embeddings.LayerNorm.weight": (8,),
    "encoder.layer.0.attention.self.query.weight": (8, 8),
    "encoder.layer.1.attention.self.query.weight": (8, 8),
}


def encoder(architecture: str = "BertModel") -> Checkpoint:
    tensors = tuple(TensorEntry(name, "F32", shape) for name, shape in BERT_TENSORS.items())
    return Checkpoint("/models/bert", {**BERT_CONFIG, "architectures": [architecture]}, tensors)


def test_an_encoder_is_one_layer_without_keys_and_values() -> None:
    preset = make_preset(encoder(), "bert").preset
    assert (preset.is_encoder, preset.layer_count, preset.numbered_layers) == (True, 1, None)
    (variant,) = preset.variants
    assert variant.kv_bytes_per_token_per_layer == 0
    assert variant.layer_bytes == ((8 + 64 + 64) * 4,)
    assert (variant.embedding_bytes, variant.head_bytes) == ((50 + 16) * 8 * 4, 0)


def test_an_encoder_takes_as_many_tokens_as_it_has_positions_for_texts() -> None:
    assert make_preset(encoder(), "bert").preset.context_tokens == 16
    assert make_preset(encoder("RobertaModel"), "roberta").preset.context_tokens == 14


def test_an_encoder_is_not_quantized() -> None:
    with pytest.raises(QuantizationError, match="encoders"):
        make_preset(encoder(), "bert", ("int8",))


def test_a_chat_model_is_no_encoder() -> None:
    preset = make_preset(checkpoint(), "tiny").preset
    assert (preset.is_encoder, preset.numbered_layers) == (False, 3)
