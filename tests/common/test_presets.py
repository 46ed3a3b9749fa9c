import msgspec
import pytest

from meshnet_common.presets import DTYPE_BYTES, ModelPreset
from meshnet_common.shard_range import ShardRange
from tests.common.builders import preset, variant


@pytest.mark.parametrize(
    ("start", "end", "size"),
    [
        (1, 3, 101 + 102),
        (0, 1, 100 + 50),
        (3, 4, 103 + 70),
        (0, 4, 100 + 101 + 102 + 103 + 50 + 70),
    ],
)
def test_a_range_counts_its_layers_and_the_ends_of_the_model_that_it_has(
    start: int, end: int, size: int
) -> None:
    assert variant(layers=4).range_bytes(ShardRange(start, end)) == size


def test_bytes_per_layer_is_the_largest_layer() -> None:
    assert variant(layers=4).bytes_per_layer == 103


def test_the_layer_count_is_that_of_the_variants() -> None:
    model = preset(variant(layers=5))
    assert (model.layer_count, model.variants[0].layer_count) == (5, 5)


def test_a_variant_is_found_by_its_quantization() -> None:
    half = variant(quantization="bfloat16")
    model = preset(variant(), half)
    assert model.variant("bfloat16") is half
    assert model.variant("nf4") is None


def test_the_bare_name_is_the_default_variant_and_others_say_theirs() -> None:
    model = preset(variant(), variant(quantization="bfloat16"))
    assert model.public_name("float32") == "tiny"
    assert model.public_name("bfloat16") == "tiny-bfloat16"


def test_a_preset_survives_json() -> None:
    model = preset(variant(), variant(quantization="bfloat16", wire_dtype="bfloat16"))
    assert msgspec.json.decode(msgspec.json.encode(model), type=ModelPreset) == model


def test_every_wire_dtype_has_its_width() -> None:
    assert dict(DTYPE_BYTES) == {"bfloat16": 2, "float16": 2, "float32": 4}
