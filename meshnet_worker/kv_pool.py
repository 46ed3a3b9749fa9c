"""The KV Blocks of one Shard, counted; pure.

The unit is one block of one Layer, since a Route may enter a Shard in the middle: a Session holds
equally many blocks in each Layer of its Hop and none elsewhere, and what is free for a run of
Layers is the least that is free in any of them. Who asks may displace who was admitted later.
"""

from collections import Counter
from dataclasses import dataclass

from meshnet_common.errors import MeshnetError
from meshnet_common.protocol.bodies import KvFigures
from meshnet_common.shard_range import ShardRange


class KvExhaustedError(MeshnetError):
    """The Worker has no room for the Session's keys and values."""

    def __init__(self, figures: KvFigures) -> None:
        super().__init__(
            f"It needs {figures.needed} more KV Blocks in each of its Layers; {figures.free} of "
            f"{figures.total} are free."
        )
        self.figures = figures


class KvCapacityError(KvExhaustedError):
    """The Session's keys and values would not even fit into empty pools."""


@dataclass(frozen=True, slots=True)
class KvRequest:
    """A Session wants room for `positions` in all, on these Layers of one Shard.

    Of any two Sessions one comes first in `order`, so that neither waits for the other.
    """

    session: int
    shard: int
    layers: ShardRange
    positions: int
    order: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Holding:
    """What one Session holds: `blocks` in each of its Layers."""

    layers: ShardRange
    blocks: int
    order: tuple[int, int]


class KvPool:
    """Blocks by Session; `blocks` is the size of the pool of each Layer."""

    def __init__(self, block_positions: int) -> None:
        self.blocks = 0
        self._block_positions = block_positions
        self._held: dict[int, _Holding] = {}
        self._used: Counter[int] = Counter()

    @property
    def most_used(self) -> int:
        """Blocks in the Layer where most are used: no pool can be smaller."""
        return max(self._used.values(), default=0)

    @property
    def capacity(self) -> int:
        """Positions of the longest Session that would fit if no other were here."""
        return self.blocks * self._block_positions

    def free(self, layers: ShardRange) -> int:
        """Blocks that are free in every one of these Layers."""
        return max(0, self.blocks - max(self._used[layer] for layer in layers.layers))

    def used_in_all(self) -> int:
        """Blocks that Sessions hold, summed over the Layers."""
        return self._used.total()

    def victims(self, request: KvRequest) -> tuple[int, ...]:
        """The Sessions to close so that the request fits: none if it fits already.

        The ones admitted last go first; only those admitted after the asker, and only where they
        help. Raises KvCapacityError if it could never fit, KvExhaustedError if the older ones
        leave too little; then nobody is to be closed.
        """
        figures = self._figures(request)
        if self._blocks_for(request.positions) > self.blocks:
            raise KvCapacityError(figures)
        missing = {
            layer: figures.needed - (self.blocks - self._used[layer])
            for layer in request.layers.layers
        }
        short = Counter({layer: blocks for layer, blocks in missing.items() if blocks > 0})
        victims = []
        for session, holding in self._younger_than(request.order):
            helps = [layer for layer in holding.layers.layers if short[layer] > 0]
            if helps:
                victims.append(session)
                short.subtract(dict.fromkeys(helps, holding.blocks))
        if max(short.values(), default=0) > 0:
            raise KvExhaustedError(figures)
        return tuple(victims)

    def reserve(self, request: KvRequest) -> None:
        """Hold what is asked, in place of what the Session held; raises KvExhaustedError."""
        figures = self._figures(request)
        if figures.needed > figures.free:
            raise KvExhaustedError(figures)
        held = self._held.get(request.session)
        layers = held.layers if held else request.layers
        blocks = figures.needed + (held.blocks if held else 0)
        self._held[request.session] = _Holding(layers, blocks, request.order)
        self._used.update(dict.fromkeys(layers.layers, figures.needed))

    def release(self, session: int) -> None:
        held = self._held.pop(session, None)
        if held is not None:
            self._used.subtract(dict.fromkeys(held.layers.layers, held.blocks))

    def _figures(self, request: KvRequest) -> KvFigures:
        held = self._held.get(request.session)
        needed = self._blocks_for(request.positions) - (held.blocks if held else 0)
        return KvFigures(
            needed=max(0, needed),
            free=self.free(request.layers),
            total=self.blocks,
            capacity=self.capacity,
        )

    def _blocks_for(self, positions: int) -> int:
        return -(-positions // self._block_positions)

    def _younger_than(self, order: tuple[int, int]) -> list[tuple[int, _Holding]]:
        younger = [one for one in self._held.items() if one[1].order > order]
        return sorted(younger, key=lambda one: one[1].order, reverse=True)
