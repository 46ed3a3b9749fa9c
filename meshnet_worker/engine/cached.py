"""The fall-back: a Session's segments run one by one through transformers' own Cache.

For models whose attention does not go through the engine's function, or whose Layers carry a
recurrent state. The Cache has a place for every Layer of the model; those of Layers that other Hops
run are kept at the same length without contents, since models ask any of them how much is held.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin
from transformers.cache_utils import LinearAttentionCacheLayerMixin as Recurrent

from meshnet_worker.engine.attention import FlatSegment
from meshnet_worker.engine.data_free import data_free
from meshnet_worker.engine.positions import Entry
from meshnet_worker.engine.probe import (
    PROBE_TOKENS,
    Structure,
    UnsupportedModelError,
    accepts,
    set_apart,
    structure_of,
)

Run = Callable[..., torch.Tensor]
"""Runs rows `[rows]` or `[rows, hidden]` at positions, with rows to sample and a Cache by name."""


@dataclass(slots=True)
class SessionCache:
    """What one Session holds on this Hop, and the segment that it ran last."""

    cache: Cache
    held: int = 0
    rows: torch.Tensor | None = None
    output: torch.Tensor | None = None

    def has_run(self, position: int, rows: torch.Tensor) -> bool:
        """Whether the last segment was this one: a Batch that failed is sent again, apart."""
        last = self.rows
        if last is None or not self.held == position + len(rows) == position + len(last):
            return False
        return torch.equal(rows, last)

    def forget_from(self, position: int) -> None:
        """Truncate to `position`; raises ValueError where the Cache cannot go back."""
        if position > self.held:
            raise ValueError(f"position {position} is beyond the {self.held} that are held")
        if position == self.held:
            return
        try:
            self.cache.crop(position - self.held)
        except (RuntimeError, ValueError, TypeError) as error:
            raise ValueError(
                f"this model's state cannot go back from position {self.held} to {position}"
            ) from error
        self.held = position

    def settle(self, held: int) -> None:
        """After a pass: keep the places of Layers that did not run at the same length."""
        for layer in self.cache.layers:
            if isinstance(layer, Recurrent):
                layer.has_previous_state = dict.fromkeys(layer.has_previous_state, True)
            if isinstance(layer, CacheLayerMixin) and layer.get_seq_length() < held:
                # One number for each position is the least that has a length.
                empty = torch.zeros((1, 1, held - layer.get_seq_length(), 1))
                layer.update(empty, empty)
        self.held = held


def cache_argument(model: PreTrainedModel) -> str:
    """Name the Cache as this release of transformers does; raises UnsupportedModelError."""
    for name in ("cache", "past_key_values"):
        if accepts(model, name):
            return name
    raise UnsupportedModelError("It keeps its state outside of transformers' Cache.")


def probe_cached(model: PreTrainedModel, layers: tuple[nn.Module, ...]) -> Structure:
    """Learn the structure of a model that runs Session by Session.

    Raises UnsupportedModelError or whatever the model's own code raises.
    """
    argument = cache_argument(model)

    def run(ids: torch.Tensor, positions: torch.Tensor, cache: Cache | None = None) -> object:
        held = cache or DynamicCache(config=model.config)
        del positions
        return model(input_ids=ids, use_cache=True, **{argument: held})

    structure = structure_of(model, layers, run)
    if accepts(model, "position_ids") and Entry(model, layers[0], structure).remembers_positions():
        raise UnsupportedModelError(
            "What it makes of positions changes with how long other Sessions have been."
        )
    cache = DynamicCache(config=model.config)
    positions = torch.arange(2 * PROBE_TOKENS, device="meta").unsqueeze(0)
    ids = torch.zeros_like(positions)
    with set_apart(model, "meta"), data_free():
        with torch.no_grad():
            run(ids[:, :PROBE_TOKENS], positions[:, :PROBE_TOKENS], cache)
        if not any(_holds_something(layer) for layer in cache.layers):
            raise UnsupportedModelError("It keeps its state outside of transformers' Cache.")
        with torch.enable_grad(), _watched_states(cache, layers) as went_in:
            run(ids[:, PROBE_TOKENS:], positions[:, PROBE_TOKENS:], cache)
        with torch.no_grad():
            run(ids[:, :1], positions[:, -1:] + 1, cache)
    structure.token_by_token = not all(went_in)
    return structure


@contextmanager
def _watched_states(cache: Cache, layers: tuple[nn.Module, ...]) -> Iterator[list[bool]]:
    """Note of each recurrent Layer whether what it computes in a chunk depends on its state.

    Some models take a chunk of several tokens for a beginning, and forget what they held.
    """
    went_in: list[bool] = []

    def note(place: int, output: Any) -> Any:
        hidden = output[0] if isinstance(output, tuple) else output
        if _recurrent_states(cache, place):
            went_in.append(hidden.requires_grad)
        fresh = hidden.detach().clone()
        return (fresh, *output[1:]) if isinstance(output, tuple) else fresh

    for carried in cache.layers:
        if isinstance(carried, Recurrent):
            for key, state in carried.recurrent_states.items():
                if state is not None:
                    carried.recurrent_states[key] = state.requires_grad_().clone()
    hooks = [
        layer.register_forward_hook(lambda _m, _given, out, place=place: note(place, out))
        for place, layer in enumerate(layers)
    ]
    try:
        yield went_in
    finally:
        for hook in hooks:
            hook.remove()


def _recurrent_states(cache: Cache, place: int) -> dict[int, torch.Tensor]:
    layer = cache.layers[place] if place < len(cache.layers) else None
    if not isinstance(layer, Recurrent):
        return {}
    return {k: state for k, state in layer.recurrent_states.items() if state is not None}


class CachedRuns:
    """Runs segments one by one, each through the Cache in its Session's KV."""

    def __init__(self, model: PreTrainedModel, token_by_token: bool) -> None:
        self._config = model.config
        self._token_by_token = token_by_token
        self._argument = cache_argument(model)

    def fresh(self) -> dict[str, Any]:
        """The arguments of a pass that begins a Session."""
        return {"use_cache": True, self._argument: DynamicCache(config=self._config)}

    def run(
        self,
        run: Run,
        rows: torch.Tensor,
        segments: Sequence[FlatSegment],
        sampled_rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """Take and return what a pass of a whole Batch does.

        Raises ValueError when a Session must go back and its state cannot.
        """
        sampled = sampled_rows.tolist() if sampled_rows is not None else []
        outputs = []
        for segment in segments:
            end = segment.row + segment.tokens
            own = [row - segment.row for row in sampled if segment.row <= row < end]
            keep = torch.tensor(own, device=rows.device) if own else None
            output = self._run_one(run, segment, rows[segment.row : end], keep)
            if keep is not None or sampled_rows is None:
                outputs.append(output)
        return torch.cat(outputs)

    def _run_one(
        self, run: Run, segment: FlatSegment, rows: torch.Tensor, keep: torch.Tensor | None
    ) -> torch.Tensor:
        session = getattr(segment.kv, "cache", None)
        if not isinstance(session, SessionCache):
            session = SessionCache(DynamicCache(config=self._config))
        if session.output is not None and session.has_run(segment.position, rows):
            return session.output
        # A pass that raises may have changed some Layers: nothing may build on them.
        segment.kv.cache = None
        if segment.position == 0:
            session = SessionCache(DynamicCache(config=self._config))
        session.forget_from(segment.position)
        output = self._advance(run, session, rows, keep)
        session.rows, session.output = rows, output
        segment.kv.cache = session
        return output

    def _advance(
        self, run: Run, session: SessionCache, rows: torch.Tensor, keep: torch.Tensor | None
    ) -> torch.Tensor:
        if len(rows) > 1 and session.held > 0 and self._token_by_token:
            every = None if keep is None else keep.new_zeros(1)
            singles = [self._advance(run, session, row.unsqueeze(0), every) for row in rows]
            joined = torch.cat(singles)
            return joined if keep is None else joined[keep]
        end = session.held + len(rows)
        positions = torch.arange(session.held, end, device=rows.device)
        output = run(rows, positions, keep, use_cache=True, **{self._argument: session.cache})
        session.settle(end)
        return output


def _holds_something(layer: object) -> bool:
    if isinstance(layer, Recurrent) and any(layer.has_previous_state.values()):
        return True
    return isinstance(layer, CacheLayerMixin) and layer.get_seq_length() > 0
