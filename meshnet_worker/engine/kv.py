"""Keys and values of one Session on this Hop: its blocks in the pools of its Layers.

Blocks are held for all positions that the Session has reserved. Truncating costs nothing: the
next write simply starts lower.
"""

from collections.abc import Iterable

import torch

from meshnet_worker.engine.pool import BlockPool, LayerPool

ALONE_BLOCK_POSITIONS = 256
"""Positions of a block that every device can work with."""


class SessionKv:
    """KV of one Session; positions are counted from 0."""

    def __init__(self, session: int, pool: BlockPool) -> None:
        self.session = session
        self.cache: object | None = None
        """transformers' Cache, of models that keep their own."""
        self._pool = pool
        self._positions = 0
        self._layers: dict[int, LayerPool] = {}

    @classmethod
    def alone(cls, positions: int, layers: Iterable[int]) -> "SessionKv":
        """KV in a pool that holds nothing else."""
        kv = cls(0, BlockPool(ALONE_BLOCK_POSITIONS, -(-positions // ALONE_BLOCK_POSITIONS)))
        kv.reserve(positions, layers)
        return kv

    def reserve(self, positions: int, layers: Iterable[int]) -> None:
        """Hold blocks for `positions` in all; what is held is kept.

        Raises ValueError, and holds nothing more, when a pool has too few.
        """
        for layer in layers:
            pool = self._pool.layer(layer)
            pool.reserve(self.session, positions)
            self._layers[layer] = pool
        self._positions = max(positions, self._positions)

    def release(self) -> None:
        """Give every block back."""
        for pool in self._layers.values():
            pool.release(self.session)
        self._layers.clear()

    def in_layer(self, layer: int) -> LayerPool:
        return self._layers[layer]

    def extend(
        self, layer: int, position: int, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write `[KV heads, tokens, size]` at `position`; return all up to there.

        Raises ValueError when the Session writes beyond its reservation.
        """
        held = position + key.shape[1]
        if held > self._positions:
            raise ValueError(f"{held} positions are over the {self._positions} reserved")
        return self._layers[layer].write(self.session, position, key, value)
