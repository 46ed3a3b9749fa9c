from dataclasses import replace

import msgspec
import pytest

from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.rebalance import plan_rebalance
from meshnet_tracker.planning.snapshot import (
    Demand,
    HeldShard,
    Holding,
    MeshSnapshot,
    Pin,
    PlannerPolicy,
    WorkerView,
)
from meshnet_tracker.planning.snapshot_json import (
    SavedSnapshot,
    SnapshotFormatError,
    decode_snapshot,
    encode_snapshot,
)
from tests.tracker.builders import MODEL, NOW, preset

WORKER = WorkerView(
    worker_id=WorkerId("w1"),
    url="http://w1",
    vram_bytes=100_000,
    speed=12.5,
    quantizations=frozenset({"bfloat16", "float32", "nf4"}),
    held=(HeldShard(MODEL, ShardRange(0, 2), Holding.READY),),
    layer_rates=(3.0, 2.0),
    round_trips=((WorkerId("w2"), 0.01),),
    kv_bytes_free=None,
)
SAVED = SavedSnapshot(
    taken_at=NOW,
    policy=PlannerPolicy(headroom_share=0.1),
    snapshot=MeshSnapshot(
        presets=(preset(quantizations=("bfloat16", "float32")).preset,),
        workers=(WORKER, replace(WORKER, worker_id=WorkerId("w2"), held=(), retiring=True)),
        pins=(Pin(WorkerId("w1"), MODEL, ShardRange(0, 3)),),
        demand=(Demand(MODEL, 2.5),),
    ),
)


def test_a_snapshot_comes_back_as_it_was_and_is_planned_alike() -> None:
    again = decode_snapshot(encode_snapshot(SAVED))
    assert again == SAVED
    assert plan_rebalance(again.snapshot, again.policy, again.taken_at) == plan_rebalance(
        SAVED.snapshot, SAVED.policy, SAVED.taken_at
    )


def test_equal_snapshots_are_equal_bytes() -> None:
    other = replace(WORKER, quantizations=frozenset({"nf4", "float32", "bfloat16"}))
    mesh = replace(SAVED.snapshot, workers=(other, *SAVED.snapshot.workers[1:]))
    assert encode_snapshot(SAVED) == encode_snapshot(msgspec.structs.replace(SAVED, snapshot=mesh))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[1]",
        b"\xff",
        encode_snapshot(SAVED).replace(b'"format": 1', b'"format": 2'),
        encode_snapshot(SAVED).replace(b'"start": 0', b'"start": 9'),
    ],
)
def test_what_is_no_snapshot_is_refused(data: bytes) -> None:
    with pytest.raises(SnapshotFormatError):
        decode_snapshot(data)
