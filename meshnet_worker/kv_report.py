"""What `GET /v1/kv` says: how the lent KV memory is used now; for people, tests and benchmarks."""

import msgspec

from meshnet_worker.kv_budget import KvBudget
from meshnet_worker.shards import ShardTable


class PoolReport(msgspec.Struct, frozen=True, kw_only=True):
    """One Shard's pool: blocks of each Layer, and blocks in use, summed over the Layers."""

    model: str
    quantization: str
    start_layer: int
    end_layer: int
    blocks: int
    used: int


class KvReport(msgspec.Struct, frozen=True, kw_only=True):
    """All pools of a Worker, and the Sessions that use them or wait for their turn."""

    block_positions: int
    budget_bytes: int
    free_bytes: int
    pools: tuple[PoolReport, ...]
    sessions: int
    waiting: int
    """Sessions of which this is the Head Worker and that hold no KV anywhere."""
    preempted: int
    """Sessions that gave their KV up on this Worker, since it began."""


def pool_reports(kv: KvBudget, shards: ShardTable) -> tuple[PoolReport, ...]:
    """Describe the pools of the Shards that hold Layers."""
    return tuple(
        PoolReport(
            model=shard.key[0],
            quantization=shard.key[1],
            start_layer=shard.held.start,
            end_layer=shard.held.end,
            blocks=kv.pools[shard.number].blocks,
            used=kv.pools[shard.number].used_in_all(),
        )
        for shard in shards
        if shard.held is not None and shard.number in kv.pools
    )
