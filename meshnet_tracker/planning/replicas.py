"""Which window of Layers of a covered Variant needs another replica most.

The one that is loaded hardest, or, while nobody generates, the one with most of the Layers that
have fewest replicas. Who takes it is decided in `allotment.py`.
"""

from collections.abc import Iterable
from itertools import accumulate

from meshnet_common.protocol.messages import DirectiveKind, DirectiveReason
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.draft import Draft
from meshnet_tracker.planning.flow import layer_flows
from meshnet_tracker.planning.holders import VariantDraft
from meshnet_tracker.planning.orders import Candidate

DECIMALS = 9
"""Sums of flows are compared to so many places, so that rounding never picks the window."""


class Need:
    """How much each Layer of one Variant needs another replica."""

    def __init__(self, draft: Draft, state: VariantDraft) -> None:
        layers = state.sizes.layer_count
        self.state = state
        self.flows = layer_flows(_runs(draft, state), layers)
        self.sessions = [0] * layers
        for holder in state.holders:
            if holder.worker.sessions:
                for layer in holder.run.layers:
                    self.sessions[layer] += holder.worker.sessions

    @property
    def reason(self) -> DirectiveReason:
        return DirectiveReason.HOTSPOT if any(self.sessions) else DirectiveReason.REDUNDANCY

    def add(self, shard_range: ShardRange, speed: float) -> None:
        """Count a replica that was ordered."""
        for layer in shard_range.layers:
            self.flows[layer] += speed / len(shard_range)

    def best_for(self, candidate: Candidate) -> ShardRange | None:
        """Choose the window for this Worker; None if it can hold no Layer."""
        return self.best(_windows(self.state, candidate))

    def best(self, windows: Iterable[ShardRange]) -> ShardRange | None:
        """Choose the hottest window; while nobody generates, the one with most thin Layers.

        Among equals the longer one, then the slowest Layers, then the first.
        """
        thinnest = min(self.state.planned)
        heat = _sums(s / flow for s, flow in zip(self.sessions, self.flows, strict=True))
        thin = _sums(count == thinnest for count in self.state.planned)
        flow = _sums(self.flows)

        def rank(window: ShardRange) -> tuple[float, float, int, float, int]:
            start, end = window.start, window.end
            return (
                -round(heat[end] - heat[start], DECIMALS),
                thin[start] - thin[end],
                -len(window),
                round(flow[end] - flow[start], DECIMALS),
                start,
            )

        return min(windows, key=rank, default=None)


def _runs(draft: Draft, state: VariantDraft) -> Iterable[tuple[ShardRange, float]]:
    """Yield what is held and what this pass ordered, with the speeds."""
    for holder in state.holders:
        yield holder.run, holder.worker.speed
    for directive in draft.directives:
        if directive.variant == state.key and directive.kind is DirectiveKind.LOAD_SHARD:
            yield directive.shard_range, draft.workers[directive.worker_id].speed


def _sums(values: Iterable[float]) -> list[float]:
    return list(accumulate(values, initial=0.0))


def _windows(state: VariantDraft, candidate: Candidate) -> Iterable[ShardRange]:
    """Yield for each start the widest window that fits."""
    layers = state.sizes.layer_count
    for start in range(1 if candidate.starts_at_zero else layers):
        end = state.sizes.end_within(start, layers, candidate.budget_bytes)
        if start < end:
            yield ShardRange(start, end)
