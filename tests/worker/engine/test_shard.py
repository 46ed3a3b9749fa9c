from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, Glm4MoeConfig

from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine.attention import FlatSegment
from meshnet_worker.engine.checkpoint import CheckpointError
from meshnet_worker.engine.kv import SessionKv
from meshnet_worker.engine.shard import Shard
from tests.worker.conftest import ModelFolders
from tests.worker.engine.splitting import SplitModel, even_ranges, loaded, source
from tests.worker.models import (
    CONFIGS,
    HIDDEN_SIZE,
    LAYERS,
    greedy_answer,
    logits_of,
    prompt_of,
    save_model,
)

ANSWER_TOKENS = 5
ALL = ShardRange(0, LAYERS)


def assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def on_device(shard: Shard) -> set[str]:
    """Names of the parameters whose weights are loaded."""
    model = shard._skeleton.model
    named = model.named_parameters(remove_duplicate=False)
    return {name for name, _ in named if shard._placed.holds(name)}


def layer_names(names: set[str]) -> set[int]:
    return {int(name.split(".")[2]) for name in names if ".layers." in name or ".h." in name}


def check_equals_whole(name: str, split: SplitModel, prompt_tokens: int) -> None:
    prompt = prompt_of(prompt_tokens)
    answer, logits = split.session().answer(prompt, ANSWER_TOKENS)
    assert answer == greedy_answer(name, prompt_tokens, ANSWER_TOKENS)
    assert_close(logits, logits_of(name, prompt + answer[:-1]))


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["gpt2", "gpt2-untied", "llama", "llama-tied"])
def test_a_split_model_equals_the_whole_at_every_prompt_length(
    name: str, parts: int, model_folders: ModelFolders
) -> None:
    split = SplitModel.over(model_folders(name), parts)
    for prompt_tokens in (1, 127, 128, 129, 300):
        check_equals_whole(name, split, prompt_tokens)


@pytest.mark.parametrize("name", ["mistral", "gemma2"])
def test_sliding_windows_and_soft_caps_equal_the_whole(
    name: str, model_folders: ModelFolders
) -> None:
    split = SplitModel.over(model_folders(name), 3)
    for prompt_tokens in (1, 15, 16, 17, 150):
        check_equals_whole(name, split, prompt_tokens)


def test_a_route_may_enter_and_leave_a_shard_in_the_middle(model_folders: ModelFolders) -> None:
    folder = model_folders("llama")
    whole, middle = loaded(folder), loaded(folder, 1, 4)
    split = SplitModel(
        [(whole, ShardRange(0, 1)), (middle, ShardRange(1, 3)), (whole, ShardRange(3, 4))]
    )
    check_equals_whole("llama", split, 130)


def test_sessions_in_one_batch_equal_each_alone(model_folders: ModelFolders) -> None:
    split = SplitModel.over(model_folders("llama"), 2)
    one, other = split.session(), split.session()
    prompts = prompt_of(40), prompt_of(90)[50:]
    one.run(prompts[0][:30], 0)
    together = split.run([(one, prompts[0][30:], 30), (other, prompts[1], 0)])
    assert_close(together[:10], logits_of("llama", prompts[0])[30:])
    assert_close(together[10:], logits_of("llama", prompts[1]))
    decoded = split.run([(other, [7], 40), (one, [9], 40)])
    assert_close(decoded[0], logits_of("llama", [*prompts[1], 7])[-1])
    assert_close(decoded[1], logits_of("llama", [*prompts[0], 9])[-1])


def test_going_on_from_an_earlier_position_forgets_what_came_after(
    model_folders: ModelFolders,
) -> None:
    session = SplitModel.over(model_folders("gpt2"), 2).session()
    session.prefill(prompt_of(50))
    again = session.run([3, 4, 5], 20)
    assert_close(again, logits_of("gpt2", [*prompt_of(20), 3, 4, 5])[20:])
    assert_close(session.run([6], 23), logits_of("gpt2", [*prompt_of(20), 3, 4, 5, 6])[23:])


def test_a_pass_that_fails_half_way_changes_nothing_for_the_next(
    model_folders: ModelFolders,
) -> None:
    shard = loaded(model_folders("llama"))
    for shard_range in (ShardRange(1, 3), ALL):
        short = SplitModel([(shard, shard_range)]).session()
        short.kv[0] = SessionKv.alone(2, ALL.layers)
        rows = [1.0] * HIDDEN_SIZE if shard_range.start else 1
        with pytest.raises(ValueError, match="2 reserved"):
            shard.run(
                shard_range, torch.tensor([rows] * 3), [FlatSegment(short.kv[0], 0, 3, 0)], ()
            )
    check_equals_whole("llama", SplitModel([(shard, ALL)]), 20)


def test_what_is_not_sampled_leaves_as_hidden_states(model_folders: ModelFolders) -> None:
    shard = loaded(model_folders("llama"))
    session = SplitModel([(shard, ALL)]).session()
    segments = session.model.run([(session, prompt_of(3), 0)])
    assert segments.shape[0] == 3
    first = SplitModel([(shard, ShardRange(0, 2))]).session()
    assert first.run(prompt_of(3), 0).shape == (3, HIDDEN_SIZE)


@pytest.mark.parametrize("shard_range", even_ranges(3), ids=str)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_only_the_tensors_of_the_range_are_loaded(
    name: str, shard_range: ShardRange, model_folders: ModelFolders
) -> None:
    names = on_device(loaded(model_folders(name), shard_range.start, shard_range.end))
    assert layer_names(names) == set(shard_range.layers)
    has_embeddings = any(part in n for n in names for part in ("embed_tokens", "wte"))
    # GPT-2's output head is its embeddings, but lies prepacked where there are none.
    assert has_embeddings == (shard_range.start == 0)
    assert any("wpe" in n for n in names) == (name == "gpt2" and shard_range.start == 0)
    has_exit = any(
        n.endswith(("norm.weight", "ln_f.weight")) and ".layers." not in n for n in names
    )
    assert has_exit == (shard_range.end == LAYERS)


@pytest.mark.parametrize("shard_range", [*even_ranges(3), ALL], ids=str)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_size_of_a_range_is_what_loading_it_puts_on_the_device(
    name: str, shard_range: ShardRange, model_folders: ModelFolders
) -> None:
    shard = Shard(source(model_folders(name)))
    steps = list(shard.load(shard_range))
    model = shard._skeleton.model
    held_once = {id(p): p for p in map(model.get_parameter, on_device(shard))}.values()
    held = sum(parameter.numel() * parameter.element_size() for parameter in held_once)
    assert shard.bytes_of(shard_range) == sum(steps) == held


def test_loading_yields_after_each_layer_and_is_done_only_at_the_end(
    model_folders: ModelFolders,
) -> None:
    shard = Shard(source(model_folders("llama")))
    steps = shard.load(ALL)
    for _ in range(LAYERS + 2):
        assert next(steps) > 0
        assert shard.loaded is None
    assert list(steps) == []
    assert shard.loaded == ALL


def test_layers_that_are_not_loaded_are_never_run(model_folders: ModelFolders) -> None:
    shard = loaded(model_folders("llama"), 1, 3)
    with pytest.raises(ValueError, match="is not loaded"):
        shard.run(ALL, torch.tensor([1]), (), ())


def test_no_plain_weight_stays_beside_its_new_layout(tmp_path: Path) -> None:
    config = CONFIGS["llama"]()
    config.attention_bias = config.mlp_bias = True
    torch.manual_seed(6)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path)
    shard = loaded(tmp_path)
    model = shard._skeleton.model
    held = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in model.parameters()
        if not tensor.is_meta
    }
    named = dict(model.named_parameters())
    in_linears = sum(4 * named[name].numel() for name in named if "proj.weight" in name)
    assert sum(held.values()) < in_linears / 2


def test_what_is_loaded_is_not_loaded_again(model_folders: ModelFolders) -> None:
    shard = loaded(model_folders("llama"), 0, 3)
    sizes = list(shard.load(ALL))
    assert [size > 0 for size in sizes] == [False, False, False, False, True, True]


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_dropping_gives_the_memory_back_and_leaves_the_rest_exact(
    name: str, model_folders: ModelFolders
) -> None:
    shard = loaded(model_folders(name))
    shard.drop(ShardRange(0, 2))
    assert shard.loaded == ShardRange(2, 4)
    assert layer_names(on_device(shard)) == {2, 3}
    # A tied head that was loaded beside the embedding is still that embedding.
    tied = {"transformer.wte.weight"} if name == "gpt2" else set()
    assert on_device(shard) - tied == on_device(loaded(model_folders(name), 2, 4))
    head = loaded(model_folders(name), 0, 2)
    split = SplitModel([(head, ShardRange(0, 2)), (shard, ShardRange(2, 4))])
    check_equals_whole(name, split, 20)


def test_dropping_all_leaves_nothing(model_folders: ModelFolders) -> None:
    shard = loaded(model_folders("llama"), 1, 3)
    shard.drop(ALL)
    assert (shard.loaded, on_device(shard)) == (None, set())


def test_dropped_layers_can_be_loaded_again(model_folders: ModelFolders) -> None:
    shard = loaded(model_folders("gpt2"))
    shard.drop(ShardRange(3, 4))
    list(shard.load(ShardRange(3, 4)))
    check_equals_whole("gpt2", SplitModel([(shard, ALL)]), 20)


def test_a_drop_that_would_split_the_shard_is_refused(model_folders: ModelFolders) -> None:
    shard = loaded(model_folders("llama"))
    with pytest.raises(ValueError, match="would split"):
        shard.drop(ShardRange(1, 3))
    assert shard.loaded == ALL


def test_a_range_that_would_leave_a_gap_is_refused(model_folders: ModelFolders) -> None:
    shard = loaded(model_folders("llama"), 0, 1)
    with pytest.raises(ValueError, match="a gap lies between"):
        shard.check_loadable(ShardRange(2, 3))


def test_layers_that_the_model_lacks_are_refused(model_folders: ModelFolders) -> None:
    shard = Shard(source(model_folders("llama")))
    with pytest.raises(ValueError, match="beyond the model's 4 layers"):
        shard.check_loadable(ShardRange(2, 5))


def test_a_load_that_stops_half_way_leaves_what_was_there(model_folders: ModelFolders) -> None:
    shard = loaded(model_folders("llama"), 0, 1)
    before = on_device(shard)
    next(steps := shard.load(ShardRange(1, 4)))
    next(steps)
    assert on_device(shard) > before
    shard.unload_unfinished()
    assert on_device(shard) == before


def test_files_without_tensors_of_the_range_need_not_be_there(tmp_path: Path) -> None:
    folder = save_model("llama", tmp_path, shard_size="40KB")
    foreign = []
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as tensors:
            if not any(".layers.0." in name or "embed" in name for name in tensors.keys()):  # noqa: SIM118 - not a dict
                foreign.append(file)
    for file in foreign:
        file.unlink()
    assert foreign
    assert loaded(folder, 0, 1).loaded == ShardRange(0, 1)
    with pytest.raises(CheckpointError):
        loaded(folder, 1, LAYERS)


def test_what_is_stored_beside_parameters_is_loaded_too(tmp_path: Path) -> None:
    config = Glm4MoeConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        moe_intermediate_size=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        first_k_dense_replace=1,
    )
    model = AutoModelForCausalLM.from_config(config)
    bias = "model.layers.1.mlp.gate.e_score_correction_bias"
    model.get_buffer(bias).copy_(torch.arange(4.0))
    model.save_pretrained(tmp_path)
    shard = loaded(tmp_path, 1, 2)
    assert shard._skeleton.model.get_buffer(bias).tolist() == [0.0, 1.0, 2.0, 3.0]
