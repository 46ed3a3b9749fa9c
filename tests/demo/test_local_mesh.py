"""The arithmetic of the local mesh; its processes are tested by tests/mesh."""

from demo.local_mesh import HEADROOM_SHARE, budget_for, covered_layers, gaps, split_budgets
from meshnet_common.presets import ModelPreset, Variant
from meshnet_common.protocol.messages import CoverageRow
from meshnet_common.shard_range import ShardRange

LAYER_BYTES = 1_000
EMBEDDING_BYTES = 5_000
HEAD_BYTES = 7_000


def _preset(layers: int) -> ModelPreset:
    variant = Variant(
        quantization="float32",
        digest="",
        layer_bytes=(LAYER_BYTES,) * layers,
        embedding_bytes=EMBEDDING_BYTES,
        head_bytes=HEAD_BYTES,
        kv_bytes_per_token_per_layer=1,
        wire_dtype="float32",
    )
    return ModelPreset(
        name="small",
        source="",
        architecture="LlamaForCausalLM",
        hidden_size=1,
        vocabulary_size=1,
        context_tokens=1,
        default_quantization="float32",
        variants=(variant,),
    )


def test_a_budget_holds_its_range_beside_the_headroom_and_no_layer_more() -> None:
    budget = budget_for(_preset(10), ShardRange(2, 6))
    usable = int(budget * (1 - HEADROOM_SHARE))
    assert usable // LAYER_BYTES == 4


def test_the_first_and_last_budget_pay_for_embeddings_and_output_head() -> None:
    first, middle, last = split_budgets(_preset(30), 3)
    assert [round(b * (1 - HEADROOM_SHARE), -2) for b in (first, middle, last)] == [
        10 * LAYER_BYTES + EMBEDDING_BYTES,
        10 * LAYER_BYTES,
        10 * LAYER_BYTES + HEAD_BYTES,
    ]


def test_gaps_are_the_rows_without_a_worker() -> None:
    rows = (
        CoverageRow(start_layer=0, end_layer=4, worker_count=2),
        CoverageRow(start_layer=4, end_layer=9, worker_count=0),
    )
    assert gaps(rows) == [ShardRange(4, 9)]
    assert covered_layers(rows) == 4
