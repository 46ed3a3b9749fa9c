import time

import pytest

from meshnet_common.weights.errors import ConfigError
from meshnet_common.weights.headers import TensorEntry
from meshnet_common.weights.outline import CheckpointOutline, outline_checkpoint
from tests.tracker.presets.checkpoints import Shapes, gpt2_tensors, llama_tensors


def outline(shapes: Shapes, layer_count: int | None) -> CheckpointOutline:
    entries = [TensorEntry(name, "BF16", shape) for name, shape in shapes.items()]
    return outline_checkpoint(entries, layer_count)


def names(tensors: tuple[TensorEntry, ...]) -> list[str]:
    return [tensor.name for tensor in tensors]


def test_a_llama_is_sorted_by_the_numbers_in_its_names() -> None:
    found = outline(llama_tensors(), 3)
    assert [len(layer) for layer in found.layers] == [2, 2, 2]
    assert found.token_embedding.name == "model.embed_tokens.weight"
    assert names(found.norms) == ["model.norm.weight"]
    assert found.output == ()


def test_a_gpt2_is_sorted_with_positions_and_without_masks() -> None:
    found = outline(gpt2_tensors(), 2)
    assert names(found.layers[1]) == ["h.1.attn.c_attn.weight", "h.1.attn.c_attn.bias"]
    assert names(found.other_embeddings) == ["wpe.weight"]
    assert names(found.norms) == ["ln_f.weight"]


def test_a_prefix_before_the_layers_makes_no_difference() -> None:
    shapes = {f"transformer.{name}": shape for name, shape in gpt2_tensors().items()}
    assert len(outline(shapes, 2).layers[0]) == 2


def test_an_output_head_of_its_own_is_found() -> None:
    found = outline({**llama_tensors(), "lm_head.weight": (50, 8)}, 3)
    assert names(found.output) == ["lm_head.weight"]


def test_experts_inside_a_layer_are_not_taken_for_layers() -> None:
    shapes = llama_tensors()
    for layer in range(3):
        for expert in range(3):
            shapes[f"model.layers.{layer}.mlp.experts.{expert}.up.weight"] = (99, 99)
    assert [len(layer) for layer in outline(shapes, 3).layers] == [5, 5, 5]


def test_the_tower_with_most_weights_wins_where_two_have_as_many_layers() -> None:
    shapes = llama_tensors()
    for layer in range(3):
        shapes[f"vision.blocks.{layer}.w"] = (2, 2)
    assert names(outline(shapes, 3).layers[0])[0].startswith("model.layers.0.")


def test_layers_beyond_the_last_one_are_left_out() -> None:
    assert len(outline(llama_tensors(layers=4), 3).layers) == 3


@pytest.mark.parametrize("layer_count", [4, 30])
def test_a_layer_without_tensors_is_refused(layer_count: int) -> None:
    with pytest.raises(ConfigError, match=rf"{layer_count} layers.*model\.layers\.N \(3\)"):
        outline(llama_tensors(), layer_count)


def test_tensors_without_numbers_or_embedding_are_refused() -> None:
    with pytest.raises(ConfigError, match="none is numbered"):
        outline({"weight": (3,)}, 1)
    with pytest.raises(ConfigError, match="token embedding"):
        outline({"layers.0.w": (3,)}, 1)


def test_long_names_without_a_number_take_no_time() -> None:
    long_names = ("a" * 100_000, "ab." * 30_000 + "x", "a1" * 50_000, "1" * 100_000)
    began = time.process_time()
    for name in long_names:
        with pytest.raises(ConfigError, match="none is numbered"):
            outline({name: (3,)}, 1)
    assert time.process_time() - began < 2.0


def test_a_model_that_is_never_split_is_one_layer_beside_its_embeddings() -> None:
    shapes = {
        "embeddings.word_embeddings.weight": (50, 8),
        "embeddings.position_embeddings.weight": (16, 8),
        "embeddings.LayerNorm.weight": (8,),
        "encoder.layer.0.attention.self.query.weight": (8, 8),
        "encoder.layer.1.attention.self.query.weight": (8, 8),
        "pooler.dense.weight": (8, 8),
        "embeddings.position_ids": (1, 16),
    }
    found = outline(shapes, None)
    assert found.token_embedding.name == "embeddings.word_embeddings.weight"
    assert names(found.other_embeddings) == ["embeddings.position_embeddings.weight"]
    assert (found.norms, found.output) == ((), ())
    (whole,) = found.layers
    assert sorted([*names(whole), *names((found.token_embedding, *found.other_embeddings))]) == [
        name for name in sorted(shapes) if name != "embeddings.position_ids"
    ]
