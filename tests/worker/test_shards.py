import msgspec
import pytest

from meshnet_common.protocol.messages import ShardState
from meshnet_common.shard_range import ShardRange
from meshnet_worker.shards import (
    DrainingError,
    Loading,
    LocalShard,
    NotServingError,
    ShardTable,
)
from tests.common.builders import HIDDEN_SIZE, hops, preset, ticket, variant
from tests.worker.builders import local_shard


def loading(start: int, end: int) -> Loading:
    return Loading(ShardRange(start, end), bytes_done=10, bytes_total=90)


def table(*shards: LocalShard) -> ShardTable:
    made = ShardTable()
    for shard in shards:
        made.add(shard.preset, shard.variant, shard.folder).ready = shard.ready
    return made


def reported(shard: LocalShard) -> list[tuple[ShardState, int, int]]:
    return [(one.state, one.start_layer, one.end_layer) for one in shard.reports()]


def test_new_sessions_use_only_layers_that_are_ready() -> None:
    shard = local_shard(ready=(1, 4))
    assert shard.serves(ShardRange(1, 4))
    assert shard.serves(ShardRange(2, 3))
    assert not shard.serves(ShardRange(0, 2))
    assert not local_shard(ready=None).serves(ShardRange(0, 1))


def test_new_sessions_use_no_layer_that_is_draining() -> None:
    shard = local_shard(ready=(0, 4))
    shard.draining = ShardRange(2, 4)
    assert shard.serves(ShardRange(0, 2))
    assert not shard.serves(ShardRange(1, 3))


def test_layers_on_their_way_are_held_too() -> None:
    shard = local_shard(ready=(0, 2))
    shard.loading = loading(2, 4)
    assert shard.held == ShardRange(0, 4)
    assert shard.weight_bytes == shard.variant.range_bytes(ShardRange(0, 4))


def test_a_shard_of_nothing_holds_nothing() -> None:
    shard = local_shard(ready=None)
    assert (shard.held, shard.weight_bytes) == (None, 0)


def test_a_row_is_one_position_of_the_wires_dtype() -> None:
    half = preset(variant(quantization="bfloat16", wire_dtype="bfloat16"))
    assert local_shard().row_bytes == 4 * HIDDEN_SIZE
    assert local_shard(model=half).row_bytes == 2 * HIDDEN_SIZE


def test_each_run_of_layers_is_reported_once_in_its_state() -> None:
    shard = local_shard(ready=(0, 3))
    shard.draining, shard.loading = ShardRange(2, 3), loading(3, 4)
    assert reported(shard) == [
        (ShardState.READY, 0, 2),
        (ShardState.DRAINING, 2, 3),
        (ShardState.LOADING, 3, 4),
    ]


def test_a_report_says_how_far_a_load_is() -> None:
    shard = local_shard(ready=None)
    shard.loading = loading(2, 4)
    (report,) = shard.reports()
    assert (report.bytes_done, report.bytes_total, report.is_tail) == (10, 90, True)


def test_a_ready_shard_reports_its_size() -> None:
    shard = local_shard(ready=(0, 2))
    (report,) = shard.reports()
    size = shard.variant.range_bytes(ShardRange(0, 2))
    assert (report.bytes_done, report.bytes_total, report.is_tail) == (size, size, False)


def test_shards_are_found_by_variant_and_by_public_name() -> None:
    half = variant(quantization="bfloat16")
    model = preset(variant(), half)
    shards = ShardTable()
    full, other = (shards.add(model, one, "folder") for one in model.variants)
    assert shards.find("tiny", "float32") is full
    assert shards.find("tiny", "nf4") is None
    assert shards.named("tiny") is full
    assert shards.named("tiny-bfloat16") is other
    assert full.number != other.number


def test_a_removed_shard_is_gone_and_its_number_is_not_used_again() -> None:
    shards = table(local_shard())
    (shard,) = shards
    shards.remove(shard)
    assert shards.find(*shard.key) is None
    assert shards.weight_bytes == 0
    assert shards.add(shard.preset, shard.variant, "folder").number != shard.number


def test_the_table_weighs_all_its_shards() -> None:
    shards = table(local_shard(), local_shard(model=preset(name="other")))
    assert shards.weight_bytes == sum(shard.weight_bytes for shard in shards) > 0
    assert len(shards.reports()) == 2


def test_a_tickets_layers_are_served_by_its_variant() -> None:
    shards = table(local_shard(ready=(0, 4)))
    assert shards.serving(ticket(*hops(2, 2)), ShardRange(2, 4)) is shards.find("tiny", "float32")


def test_layers_that_are_not_ready_are_not_served() -> None:
    with pytest.raises(NotServingError):
        table(local_shard(ready=(0, 2))).serving(ticket(), ShardRange(2, 4))
    with pytest.raises(NotServingError):
        ShardTable().serving(ticket(), ShardRange(0, 2))


def test_weights_of_another_digest_are_not_served() -> None:
    newer = msgspec.structs.replace(ticket(), variant_digest="digest-of-newer-weights")
    with pytest.raises(NotServingError, match="digest-of-newer-weights"):
        table(local_shard()).serving(newer, ShardRange(0, 2))


def test_a_worker_that_leaves_takes_no_new_session() -> None:
    shards = table(local_shard(ready=(0, 4)))
    shards.leaving = True
    with pytest.raises(DrainingError):
        shards.serving(ticket(*hops(2, 2)), ShardRange(2, 4))


def test_a_worker_that_leaves_drains_all_that_is_ready() -> None:
    shards = table(local_shard(ready=(0, 2)))
    (shard,) = shards
    shard.loading, shards.leaving = loading(2, 4), True
    states = [(one.state, one.start_layer, one.end_layer) for one in shards.reports()]
    assert states == [(ShardState.DRAINING, 0, 2), (ShardState.LOADING, 2, 4)]
