"""Keys and values of one Session on this Hop, one pair of tensors per Layer.

A tensor is allocated for all positions that the Session has reserved, at its first use, because
only the model knows its head sizes. Writes are in place; only a larger reservation copies.
Truncating costs nothing: the next write simply starts lower.
"""

import torch


class SessionKv:
    """KV of `positions` reserved positions; positions are counted from 0."""

    def __init__(self, positions: int) -> None:
        self._positions = positions
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def reserve(self, positions: int) -> None:
        """Make room for `positions` in all; what is held is kept."""
        self._positions = max(positions, self._positions)

    def extend(
        self, layer: int, position: int, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write `[KV heads, tokens, size]` at `position`; return all up to there, as views.

        Raises ValueError when the Session writes beyond its reservation.
        """
        held = position + key.shape[1]
        if held > self._positions:
            raise ValueError(f"{held} positions are over the {self._positions} reserved")
        keys, values = self._tensors(layer, key, value)
        # `narrow` does what a slice does, in half the time; this runs once a Layer and step.
        keys.narrow(1, position, key.shape[1]).copy_(key)
        values.narrow(1, position, key.shape[1]).copy_(value)
        return keys.narrow(1, 0, held), values.narrow(1, 0, held)

    def _tensors(
        self, layer: int, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        pair = self._layers.get(layer)
        if pair is None or pair[0].shape[1] < self._positions:
            held_keys, held_values = pair or (None, None)
            pair = (self._allocate(key, held_keys), self._allocate(value, held_values))
            self._layers[layer] = pair
        return pair

    def _allocate(self, like: torch.Tensor, held: torch.Tensor | None) -> torch.Tensor:
        tensor = like.new_empty((like.shape[0], self._positions, like.shape[2]))
        if held is not None:
            tensor[:, : held.shape[1]] = held
        return tensor
