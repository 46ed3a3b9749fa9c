from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import MixtralConfig
from transformers.pytorch_utils import Conv1D

from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine import quantization
from meshnet_worker.engine.packed import UnpackableWeightError
from meshnet_worker.engine.quantization import (
    PACKERS,
    Int8Weight,
    Nf4Weight,
    QuantizationUnavailableError,
    offered_quantizations,
)
from meshnet_worker.engine.shard import Shard, ShardSource
from tests.worker.conftest import ModelFolders
from tests.worker.engine.splitting import CPU, SplitModel
from tests.worker.models import LAYERS, prompt_of, save_model

WHOLE = ShardRange(0, LAYERS)
OUTLIER = 40.0

Weight = type[Int8Weight] | type[Nf4Weight]


def shard_of(folder: Path, name: str, shard_range: ShardRange = WHOLE) -> Shard:
    shard = Shard(ShardSource(str(folder), torch.bfloat16, CPU, name))
    list(shard.load(shard_range))
    return shard


@pytest.fixture
def random_numbers() -> Callable[..., torch.Tensor]:
    generator = torch.Generator().manual_seed(6)
    return lambda *shape: torch.randn(shape, generator=generator).bfloat16()


@pytest.mark.parametrize(("weight", "error"), [(Int8Weight, 0.02), (Nf4Weight, 0.12)])
def test_a_quantized_map_is_near_the_plain_one(
    weight: Weight, error: float, random_numbers: Callable[..., torch.Tensor]
) -> None:
    linear = nn.Linear(256, 48).bfloat16()
    matrix, given = random_numbers(48, 256), random_numbers(2, 5, 256)
    with torch.no_grad():
        ours = weight(matrix).forward_of(linear)(given).float()
        theirs = nn.functional.linear(given, matrix, linear.bias).float()
    assert ours.shape == theirs.shape
    assert 0 < (ours - theirs).norm() / theirs.norm() < error


@pytest.mark.parametrize("weight", [Int8Weight, Nf4Weight])
def test_the_size_is_known_before_quantizing(
    weight: Weight, random_numbers: Callable[..., torch.Tensor]
) -> None:
    for shape in ((48, 256), (7, 30)):
        assert weight(random_numbers(*shape)).size_bytes == weight.packed_bytes(*shape)


@pytest.mark.parametrize("weight", [Int8Weight, Nf4Weight])
def test_anything_but_a_linear_map_is_refused(
    weight: Weight, random_numbers: Callable[..., torch.Tensor]
) -> None:
    with pytest.raises(UnpackableWeightError, match="Embedding is no plain linear map"):
        weight(random_numbers(64, 64)).forward_of(nn.Embedding(64, 64))


@pytest.mark.parametrize("weight", [Int8Weight, Nf4Weight])
def test_outliers_in_one_row_change_no_other(
    weight: Weight, random_numbers: Callable[..., torch.Tensor]
) -> None:
    forward = weight(random_numbers(48, 256)).forward_of(nn.Linear(256, 48, bias=False))
    given = random_numbers(1, 4, 256)
    loud = given.clone()
    loud[0, 1:, ::9] = OUTLIER
    assert torch.equal(forward(given)[0, 0], forward(loud)[0, 0])


def test_int8_takes_values_beyond_half_precision_and_rows_of_zeros() -> None:
    forward = Int8Weight(torch.ones(4, 8).bfloat16()).forward_of(nn.Linear(8, 4, bias=False))
    given = torch.tensor([[1e9] * 8, [0.0] * 8]).bfloat16()
    torch.testing.assert_close(forward(given), 8 * given[:, :4], rtol=0.01, atol=0)


@pytest.mark.parametrize("name", PACKERS)
@pytest.mark.parametrize("model", ["llama", "gpt2"])
def test_a_split_model_answers_as_the_undivided_one(
    name: str, model: str, model_folders: ModelFolders
) -> None:
    folder = model_folders(model)
    ranges = (ShardRange(0, 1), ShardRange(1, LAYERS))
    split = SplitModel([(shard_of(folder, name, r), r) for r in ranges])
    whole = SplitModel([(shard_of(folder, name), WHOLE)])
    prompt = prompt_of(40)
    assert torch.equal(split.session().prefill(prompt), whole.session().prefill(prompt))


@pytest.mark.parametrize("name", PACKERS)
def test_a_sessions_logits_do_not_depend_on_who_shares_the_batch(
    name: str, model_folders: ModelFolders
) -> None:
    model = SplitModel([(shard_of(model_folders("llama"), name), WHOLE)])
    alone, among = model.session(), model.session()
    others = [model.session() for _ in range(3)]
    prompt = prompt_of(20)
    expected = alone.run(prompt, 0)
    runs = [(other, prompt_of(30 + place)[7:], 0) for place, other in enumerate(others)]
    together = model.run([runs[0], (among, prompt, 0), *runs[1:]])[23:43]
    # Plain 16-bit matrix products round differently for other numbers of rows; nothing else may.
    torch.testing.assert_close(together, expected, rtol=0.02, atol=0.05)
    assert torch.equal(together.argmax(1), expected.argmax(1))


@pytest.mark.parametrize("name", PACKERS)
def test_only_the_matrices_of_the_layers_are_quantized(
    name: str, model_folders: ModelFolders
) -> None:
    shard = shard_of(model_folders("llama"), name)
    ends = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    for parameter in {*ends, "model.layers.0.input_layernorm.weight"}:
        assert shard._weights.packed_bytes(parameter) is None
        assert shard._placed.parameter(parameter).dtype == torch.bfloat16
    assert shard._weights.packed_bytes("model.layers.0.mlp.up_proj.weight")
    assert shard._placed.parameter("model.layers.0.mlp.up_proj.weight").is_meta


def test_transposed_matrices_are_quantized_by_output(model_folders: ModelFolders) -> None:
    shard = shard_of(model_folders("gpt2"), "int8")
    attention = shard._skeleton.layers[0].get_submodule("attn.c_attn")
    assert type(attention) is Conv1D
    assert attention.weight.is_meta
    assert attention(torch.randn(1, 2, 32).bfloat16()).shape == (1, 2, 96)


@pytest.mark.parametrize("name", PACKERS)
def test_dropped_layers_give_their_memory_back_and_can_be_loaded_again(
    name: str, model_folders: ModelFolders
) -> None:
    shard = shard_of(model_folders("llama"), name)
    before = SplitModel([(shard, WHOLE)]).session().prefill(prompt_of(9))
    shard.drop(ShardRange(2, LAYERS))
    assert not any(shard._placed.holds(name) for name in shard._names(ShardRange(2, LAYERS)))
    list(shard.load(ShardRange(2, LAYERS)))
    after = SplitModel([(shard, WHOLE)]).session().prefill(prompt_of(9))
    assert torch.equal(before, after)


def test_fused_experts_are_refused_with_the_reason(tmp_path: Path) -> None:
    MixtralConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
    ).save_pretrained(tmp_path)
    save_model("llama", tmp_path / "weights")
    (tmp_path / "weights" / "model.safetensors").rename(tmp_path / "model.safetensors")
    with pytest.raises(UnpackableWeightError, match="fused experts"):
        Shard(ShardSource(str(tmp_path), torch.bfloat16, CPU, "int8"))


def test_a_machine_without_bitsandbytes_offers_neither_and_says_why(
    monkeypatch: pytest.MonkeyPatch, model_folders: ModelFolders
) -> None:
    assert set(PACKERS) <= set(offered_quantizations())

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(quantization, "version", missing)
    assert not set(PACKERS) & set(offered_quantizations())
    assert {"bfloat16", "q4k"} <= set(offered_quantizations())
    with pytest.raises(QuantizationUnavailableError, match="nf4 needs it"):
        Shard(ShardSource(str(model_folders("llama")), torch.bfloat16, CPU, "nf4"))


def test_an_old_bitsandbytes_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantization, "version", lambda _name: "0.49.2")
    assert "int8" not in offered_quantizations()
