"""Divides what weights leave of the Budget among the Shards' pools, and tells the engine."""

from collections.abc import Iterator

from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine_port import SizePool
from meshnet_worker.engine_process import EngineProcess
from meshnet_worker.kv_budget import KvBudget, PoolShape
from meshnet_worker.reconcile import DirectiveRefusedError
from meshnet_worker.shards import LocalShard, ShardTable


class PoolSizes:
    """The pools of all Shards, by what is lent and what the weights take of it."""

    def __init__(self, shards: ShardTable, kv: KvBudget) -> None:
        self._shards = shards
        self._kv = kv

    def commands(self) -> Iterator[SizePool]:
        """Say how large each pool is now."""
        for shard in self._shards:
            # What still loads has no pool that could be in the way, and an encoder none at all.
            if shard.ready is not None and not shard.preset.is_encoder:
                yield SizePool(shard.number, self._kv.pools[shard.number].blocks)

    def divide(self) -> None:
        """Divide anew what the weights leave of the Budget."""
        shapes = (
            _shape(shard, shard.held)
            for shard in self._shards
            if shard.held and not shard.preset.is_encoder
        )
        self._kv.resize(self._shards.weight_bytes, shapes)

    def divide_on(self, engine: EngineProcess) -> None:
        """Divide it anew, and tell the engine."""
        self.divide()
        for command in self.commands():
            engine.send(command)

    def check(self, shard: LocalShard, layers: ShardRange) -> None:
        """Raise DirectiveRefusedError where a Shard has no room for these Layers as well."""
        after = shard.held.union(layers) if shard.held else layers
        wanted = shard.variant.range_bytes(after)
        held = ((one, after if one is shard else one.held) for one in self._shards)
        shapes = [_shape(one, run) for one, run in held if run and not one.preset.is_encoder]
        others = self._shards.weight_bytes - shard.weight_bytes + self._kv.held_bytes(shapes)
        if wanted + others > self._kv.budget_bytes:
            facts = f"{layers} needs {wanted} bytes beside {others}"
            raise DirectiveRefusedError(f"{facts}, and {self._kv.budget_bytes} are lent.")


def _shape(shard: LocalShard, layers: ShardRange) -> PoolShape:
    return PoolShape(shard.number, layers, shard.variant.kv_bytes_per_token_per_layer)
