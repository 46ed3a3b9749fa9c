"""What a model makes of positions before its first Layer, in numbers.

Rotary tables and the like are computed, not loaded, so they are right while no weight is there yet.
Compared between passes they show two things that are seen in no shape: whether a row's numbers
depend on where the other rows are, and whether one pass changes the next.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten
from transformers import PreTrainedModel

from meshnet_worker.engine.probe import (
    PROBE_TOKENS,
    Structure,
    replaced_forwards,
    set_apart,
    zeros_like_template,
)

Seen = Sequence[torch.Tensor]
"""All the numbers that the entry and the first Layer were given in one pass."""

_UNSTATED_LONGEST = 1 << 15
"""Where a configuration names no longest position."""


class Entry:
    """Runs a model up to its first Layer, again and again.

    `named` goes into every pass. What passes leave in the model is forgotten when `watched` ends.
    """

    def __init__(
        self, model: PreTrainedModel, first: nn.Module, structure: Structure, **named: object
    ) -> None:
        self._model = model
        self._first = first
        self._structure = structure
        self._named = named

    def is_counted_from_zero(self) -> bool:
        """Whether the model's own positions are 0, 1, 2 and so on."""
        with set_apart(self._model, "cpu"):
            return _are_equal(self._seen(None), self._seen(_counted()))

    def mixes_rows(self) -> bool:
        """Whether what one row is given depends on the positions of others."""
        moved = _counted()
        moved[0, -1] += 2 * self._longest()
        with set_apart(self._model, "cpu"):
            near, far = self._seen(_counted()), self._seen_if_any(moved)
        # A model with a table that ends has no rule for what lies beyond.
        return far is not None and not _are_equal(*map(_without_last_row, (near, far)))

    def remembers_positions(self) -> bool:
        """Whether a pass at far positions changes what a later one is given."""
        longest = self._longest()
        starts = (0, longest, 2 * longest, longest, 0)
        with set_apart(self._model, "cpu"):
            seen = [self._seen_if_any(_counted() + start) for start in starts]
        short, middle, _, middle_again, short_again = seen
        pairs = ((short, short_again), (middle, middle_again))
        return not all(_are_equal(a or (), b or ()) for a, b in pairs)

    def _longest(self) -> int:
        return longest_position(self._model.config.to_dict()) or _UNSTATED_LONGEST

    def _seen_if_any(self, positions: torch.Tensor) -> Seen | None:
        try:
            return self._seen(positions)
        except Exception:  # noqa: BLE001 - a model's own code raises anything
            return None

    def _seen(self, positions: torch.Tensor | None) -> Seen:
        seen: list[torch.Tensor] = []

        def note(*values: object) -> None:
            tensors = [leaf for leaf in tree_flatten(values)[0] if isinstance(leaf, torch.Tensor)]
            # Copies: a model may write into its tables.
            seen.extend(tensor.clone() for tensor in tensors if not tensor.is_meta)

        def noted(module: nn.Module, *given: object, **more: object) -> object:
            note(given, more)
            return zeros_like_template(self._structure.entry_outputs[module], ids[0])

        def end(*given: object, **more: object) -> object:
            note(given, more)
            raise _EnteredError

        ids = torch.ones((1, PROBE_TOKENS), dtype=torch.long)
        named = self._named if positions is None else {**self._named, "position_ids": positions}
        forwards: dict[nn.Module, Callable[..., object]] = {
            module: partial(noted, module) for module in self._structure.entry
        }
        forwards[self._first] = end
        with torch.no_grad(), replaced_forwards(forwards), suppress(_EnteredError):
            self._model(input_ids=ids, use_cache=False, **named)
        return seen


def longest_position(config: Mapping[str, Any]) -> int:
    """The largest position that a configuration names anywhere; 0 if it names none."""
    return max(_named_positions(config), default=0)


def _named_positions(config: Mapping[str, Any]) -> Iterator[int]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _named_positions(value)
        elif type(value) is int and "position" in str(name):
            yield value


class _EnteredError(Exception):
    """A pass has come to the first Layer."""


def _counted() -> torch.Tensor:
    return torch.arange(PROBE_TOKENS).unsqueeze(0)


def _are_equal(seen: Seen, other: Seen) -> bool:
    return len(seen) == len(other) and all(map(_is_equal, seen, other))


def _is_equal(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    if tensor.shape != other.shape:
        return False
    # What is no number in both is no difference.
    are_numbers = (tensor == tensor) | (other == other)
    return not bool(((tensor != other) & are_numbers).any())


def _without_last_row(seen: Seen) -> Seen:
    """Leave out what belongs to the last row, and keep whole what belongs to none."""
    rows = [next((d for d, n in enumerate(t.shape) if n == PROBE_TOKENS), None) for t in seen]
    return [
        tensor if rows_at is None else tensor.narrow(rows_at, 0, PROBE_TOKENS - 1)
        for tensor, rows_at in zip(seen, rows, strict=True)
    ]
