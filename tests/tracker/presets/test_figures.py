import pytest

from meshnet_common.presets import Variant
from meshnet_common.weights.errors import ConfigError
from meshnet_common.weights.headers import TensorEntry
from meshnet_common.weights.outline import outline_checkpoint
from meshnet_tracker.presets.facts import model_facts
from meshnet_tracker.presets.figures import checkpoint_dtype, digest_input, variant_figures
from tests.tracker.presets.checkpoints import (
    GPT2_CONFIG,
    LLAMA_CONFIG,
    Shapes,
    gpt2_tensors,
    llama_tensors,
)


def entries(shapes: Shapes, dtype: str = "BF16") -> list[TensorEntry]:
    return [TensorEntry(name, dtype, shape) for name, shape in shapes.items()]


def llama(quantization: str, **more: tuple[int, ...]) -> Variant:
    tensors = entries({**llama_tensors(), **more})
    return variant_figures(
        model_facts(LLAMA_CONFIG), outline_checkpoint(tensors, 3), quantization, "digest"
    )


@pytest.mark.parametrize(
    ("quantization", "layer_bytes"),
    [
        ("float32", 72 * 4),
        ("bfloat16", 72 * 2),
        ("float16", 72 * 2),
        ("int8", 64 + 8 * 4 + 8 * 2),
        ("nf4", 32 + 4 + 8 * 2),
    ],
)
def test_each_quantization_has_its_bytes_per_layer(quantization: str, layer_bytes: int) -> None:
    assert llama(quantization).layer_bytes == (layer_bytes,) * 3


def test_a_head_that_shares_the_embedding_pays_for_it_again() -> None:
    assert llama("bfloat16").embedding_bytes == 400 * 2
    assert llama("bfloat16").head_bytes == (400 + 8) * 2


def test_a_head_of_its_own_is_counted_once() -> None:
    figures = llama("bfloat16", **{"lm_head.weight": (50, 4)})
    assert figures.head_bytes == (200 + 8) * 2


def test_positions_belong_to_the_first_worker_only() -> None:
    outline = outline_checkpoint(entries(gpt2_tensors()), 2)
    figures = variant_figures(model_facts(GPT2_CONFIG), outline, "float32", "digest")
    assert figures.embedding_bytes == (50 + 64) * 8 * 4
    assert figures.head_bytes == (8 + 400) * 4
    assert figures.layer_bytes == (216 * 4,) * 2


def test_keys_and_values_of_a_token_are_counted_at_the_wires_width() -> None:
    assert llama("float32").kv_bytes_per_token_per_layer == 2 * 4 * 4
    assert llama("nf4").kv_bytes_per_token_per_layer == 2 * 4 * 2
    assert llama("nf4").wire_dtype == "bfloat16"


def test_the_checkpoints_dtype_is_that_of_most_weights() -> None:
    mixed = [TensorEntry("a", "F32", (5,)), TensorEntry("b", "F16", (50,))]
    assert checkpoint_dtype(mixed) == "float16"


@pytest.mark.parametrize("dtype", ["I8", "F8_E4M3"])
def test_weights_that_are_no_plain_floats_are_refused(dtype: str) -> None:
    with pytest.raises(ConfigError, match=dtype):
        checkpoint_dtype([TensorEntry("a", dtype, (5,))])


def test_the_digest_depends_on_what_matters_and_on_no_order() -> None:
    tensors = entries(llama_tensors())
    config = dict(LLAMA_CONFIG)
    same = digest_input(dict(reversed(config.items())), reversed(tensors), "nf4")
    assert digest_input(config, tensors, "nf4") == same
    assert digest_input(config, tensors, "int8") != same
    assert digest_input({**config, "rope_theta": 1}, tensors, "nf4") != same
    assert digest_input(config, tensors[1:], "nf4") != same
