"""Workers that go over to another Variant, because that one needs them more (C5).

Only a Worker that all its Layers are ready without: it drops them, and is a free Worker in the next
pass, where `allotment.py` must choose the same Variant for it; so the two compare by the same rank.
A swap has to gain more than the policy's threshold, after what the load costs of the time that the
Worker is expected to stay, and by as much it is too dear to swap back. One Worker at a time, and
none while anything of either Variant is in flight.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from meshnet_common.protocol.messages import DirectiveReason
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.allotment import Rank, Supply, supply_of, weights
from meshnet_tracker.planning.deadlines import load_seconds
from meshnet_tracker.planning.draft import Draft, candidate_of, drop
from meshnet_tracker.planning.holders import Holder, VariantDraft
from meshnet_tracker.planning.replicas import Need
from meshnet_tracker.planning.snapshot import RebalanceDirective

MOST_OFFERS = 16
"""So many Workers of one Variant are looked at, those with fewest Sessions first."""


@dataclass(frozen=True, slots=True)
class _Offer:
    """A Worker that its Variant could do without, and what that Variant has left then."""

    holder: Holder
    giver: Supply
    left: Supply


def next_swap(draft: Draft) -> RebalanceDirective | None:
    """Find the drop that lets a Worker go over to the Variant that needs one most."""
    if len(draft.variants) < 2 or any(state.gaps and state.started for state in draft.variants):
        return None
    supplies = _supplies(draft)
    neediest = min(supplies, key=Supply.rank, default=None)
    if neediest is None:
        return None
    need = Need(draft, neediest.state)
    least = 1 + draft.policy.move_gain
    givers = [each for each in supplies if _by_factor(neediest.rank(), each.rank(), least)]
    for giver in sorted(givers, key=Supply.rank, reverse=True):
        for offer in islice(_offers(draft, giver), MOST_OFFERS):
            if _pays(draft, offer, neediest, need):
                return _order(offer, neediest)
    return None


def _supplies(draft: Draft) -> list[Supply]:
    """Say what serves each covered Variant of which nothing is in flight."""
    return [
        supply_of(Need(draft, state), weight)
        for state, weight in zip(draft.variants, weights(draft), strict=True)
        if not state.in_flight and not state.gaps
    ]


def _offers(draft: Draft, giver: Supply) -> Iterator[_Offer]:
    """Yield Workers that can go, idle ones first, each with what is left without it."""
    state = giver.state
    need = Need(draft, state)
    spare = [holder for holder in state.holders if _may_go(draft, holder, state)]
    for holder in sorted(spare, key=lambda each: (each.worker.sessions, each.worker_id)):
        share = holder.worker.speed / len(holder.run)
        run = holder.run.layers
        flow = min(each - share if layer in run else each for layer, each in enumerate(need.flows))
        replicas = min(count - (layer in run) for layer, count in enumerate(state.planned))
        yield _Offer(holder, giver, Supply(state, giver.weight, replicas, flow))


def _may_go(draft: Draft, holder: Holder, state: VariantDraft) -> bool:
    """Whether it holds nothing else, has nothing in flight, and others serve all that it holds."""
    worker_id, run = holder.worker_id, holder.run
    if not holder.may_load or worker_id in draft.busy or worker_id not in draft.steady:
        return False
    alone = all(shard.variant == state.key for shard in holder.worker.held)
    return alone and min(state.ready[run.start : run.end]) > 1


def _pays(draft: Draft, offer: _Offer, neediest: Supply, need: Need) -> bool:
    """Whether the neediest Variant needs it more, by the threshold, than its own would then."""
    worker = offer.holder.worker
    if neediest.state.key.quantization not in worker.quantizations:
        return False
    window = need.best_for(candidate_of(worker, draft.policy))
    if window is None or not _keeps_safe(draft, offer, neediest, window):
        return False
    size = neediest.state.sizes.range_bytes(window)
    seconds = load_seconds(size, worker.download_bytes_per_sec)
    lost = min(1.0, _or_usual(draft, seconds) / draft.policy.expected_life_seconds)
    if lost >= 1.0:
        return False
    threshold = (1 + draft.policy.move_gain) / (1 - lost)
    return _by_factor(neediest.rank(), offer.left.rank(), threshold)


def _keeps_safe(draft: Draft, offer: _Offer, neediest: Supply, window: ShardRange) -> bool:
    """Whether no second copy is lost by it, but for one of a Variant that is asked for more."""
    if offer.left.rank()[0] >= offer.giver.rank()[0]:
        return True
    if draft.wanted(neediest.state) <= draft.wanted(offer.giver.state):
        return False
    counts = neediest.state.planned
    return all(count + (layer in window.layers) > 1 for layer, count in enumerate(counts))


def _or_usual(draft: Draft, seconds: float | None) -> float:
    return draft.policy.load_deadline_seconds if seconds is None else seconds


def _by_factor(needy: Rank, other: Rank, threshold: float) -> bool:
    """Whether one rank is before another by fewer safe replicas, or by that much less flow."""
    if needy[0] != other[0]:
        return needy[0] < other[0]
    return -needy[1] > -other[1] * threshold


def _order(offer: _Offer, neediest: Supply) -> RebalanceDirective:
    key, wanted = offer.giver.state.key, neediest.state.key
    why = f"others serve these Layers too, and {wanted} needs the Worker more than {key}"
    reason = DirectiveReason.HOTSPOT if neediest.replicas > 1 else DirectiveReason.REDUNDANCY
    return drop(offer.holder.worker_id, key, offer.holder.run, reason, why)
