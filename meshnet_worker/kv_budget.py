"""How much KV this Worker may hold, and who holds it; pure accounting in KV Blocks.

What weights leave of the Budget is divided among the pools of the Shards. A reservation is made
before a Session's positions are computed and given back whole when it ends, so that requests
alone can never run the device out of memory.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from meshnet_common.protocol.bodies import KvFigures
from meshnet_common.shard_range import ShardRange
from meshnet_worker.kv_pool import KvExhaustedError, KvPool, KvRequest

BLOCK_POSITIONS = 64
"""Positions of one KV Block until the device is known."""


@dataclass(frozen=True, slots=True)
class PoolShape:
    """What a Shard's pool costs: its Layers, and the bytes of one position in one of them."""

    shard: int
    layers: ShardRange
    position_bytes: int


class KvBudget:
    """The pools of all Shards; each has equally many blocks in every Layer, where use allows."""

    def __init__(self, budget_bytes: int = 0, block_positions: int = BLOCK_POSITIONS) -> None:
        self.budget_bytes = budget_bytes
        """The whole Budget, weights and KV together; 0 until the device is known."""
        self.block_positions = block_positions
        self.scratch_blocks = 0
        """Blocks that each Layer has beside those of Sessions; paid for as well."""
        self.weight_bytes = 0
        """What weights take of it; the pools are cut from the rest."""
        self._shapes: tuple[PoolShape, ...] = ()
        self._pools: dict[int, KvPool] = {}

    @property
    def free_bytes(self) -> int:
        """Bytes of all free blocks; before the first Shard, all that weights leave."""
        if not self._shapes:
            return max(0, self.budget_bytes - self.weight_bytes)
        return sum(self._free_bytes(shape) for shape in self._shapes)

    @property
    def pools(self) -> Mapping[int, KvPool]:
        """The pools by the number of their Shard."""
        return self._pools

    def resize(self, weight_bytes: int, shapes: Iterable[PoolShape]) -> None:
        """Divide anew what weights leave; pools of Shards that are gone go with their Sessions."""
        self.weight_bytes = weight_bytes
        self._shapes = tuple(shapes)
        numbers = {shape.shard for shape in self._shapes}
        self._pools = {
            number: self._pools.get(number) or KvPool(self.block_positions) for number in numbers
        }
        self.settle()

    def settle(self) -> bool:
        """Even the pools out, as far as Sessions let them; returns whether a size has changed."""
        before = {number: pool.blocks for number, pool in self._pools.items()}
        level = self._level()
        for pool in self._pools.values():
            pool.blocks = max(level, pool.most_used)
        return before != {number: pool.blocks for number, pool in self._pools.items()}

    def _level(self) -> int:
        """Blocks in each Layer of every pool that does not hold more already."""
        cost = sum(self._row_bytes(shape) for shape in self._shapes)
        left = max(0, self.budget_bytes - self.weight_bytes - self.scratch_blocks * cost)
        level = 0
        for shape in sorted(self._shapes, key=self._most_used, reverse=True):
            level = max(0, left) // cost
            if self._most_used(shape) <= level:
                break
            # A pool in heavy use keeps its blocks; the others share what that leaves.
            left -= self._most_used(shape) * self._row_bytes(shape)
            cost -= self._row_bytes(shape)
        return level

    def held_bytes(self, shapes: Iterable[PoolShape]) -> int:
        """The least bytes that pools of these shapes need for the Sessions that are open now."""
        return sum(self._most_used(shape) * self._row_bytes(shape) for shape in shapes)

    def victims(self, request: KvRequest) -> tuple[int, ...]:
        """The Sessions to close so that the request fits; raises KvExhaustedError."""
        return self._pool(request).victims(request)

    def reserve(self, request: KvRequest) -> None:
        """Hold what is asked, in place of what the Session held; raises KvExhaustedError."""
        self._pool(request).reserve(request)

    def release(self, session: int) -> None:
        """Give back all that a Session holds."""
        for pool in self._pools.values():
            pool.release(session)

    def _pool(self, request: KvRequest) -> KvPool:
        pool = self._pools.get(request.shard)
        if pool is None:
            raise KvExhaustedError(KvFigures(needed=1, free=0, total=0, capacity=0))
        return pool

    def _most_used(self, shape: PoolShape) -> int:
        pool = self._pools.get(shape.shard)
        return pool.most_used if pool else 0

    def _free_bytes(self, shape: PoolShape) -> int:
        pool = self._pools[shape.shard]
        blocks = pool.blocks * len(shape.layers) - pool.used_in_all()
        return max(0, blocks) * self.block_positions * shape.position_bytes

    def _row_bytes(self, shape: PoolShape) -> int:
        """Bytes of one block in every Layer of the Shard."""
        # A model whose Layers keep no KV still counts its blocks.
        return self.block_positions * max(1, shape.position_bytes) * len(shape.layers)
