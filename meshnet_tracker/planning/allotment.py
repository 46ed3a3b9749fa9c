"""Which Variant a free Worker serves, once everything that can be covered is.

A second replica of every Layer comes first, so that one loss opens no gap; after that the Variant
whose thinnest Layer carries least for what it is asked for. A Variant that nobody holds yet, and
many Workers at once, are placed as whole copies; few are placed window by window (`replicas.py`).
"""

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import DirectiveReason
from meshnet_tracker.planning.draft import Draft, load
from meshnet_tracker.planning.filling import GapPlan
from meshnet_tracker.planning.first_parts import first_parts
from meshnet_tracker.planning.holders import SAFE_REPLICAS, VariantDraft
from meshnet_tracker.planning.orders import Candidate, Placement
from meshnet_tracker.planning.placement import fresh_placement
from meshnet_tracker.planning.quickly import UNMEASURED_BYTES_PER_SEC, fill_quickly
from meshnet_tracker.planning.replicas import Need
from meshnet_tracker.planning.snapshot import VariantKey
from meshnet_tracker.planning.target import MOST_SEARCHED, target_placement

LEAST_SHARE = 0.01
"""A Variant that nobody asks for counts as if it were asked for so much of the most wanted one."""
MUCH_LONGER = 2.0
MUCH_SECONDS = 20.0
"""A placement that is there by so much later than another is not what a Variant begins with."""
FEW_WORKERS = 64
"""Up to so many free Workers each choose their own window."""
MOST_WINDOWS = 200
"""So many Workers choose a window in one pass; it is the next one's turn for the rest."""

Rank = tuple[int, float]


@dataclass(slots=True)
class Supply:
    """What serves one Variant, and what it is to be given more: the least of these comes first."""

    state: VariantDraft
    weight: float
    replicas: float
    flow: float

    def rank(self) -> Rank:
        """Order Variants by how badly they need a Worker, the neediest first."""
        pressure = self.weight / self.flow if self.flow > 0 else float("inf")
        return min(int(self.replicas), SAFE_REPLICAS), -pressure

    def add(self, budget_bytes: int, speed: float) -> None:
        """Count a Worker as its share of whole copies."""
        layers = self.state.sizes.layer_count
        size = self.state.sizes.range_bytes(self.state.sizes.whole)
        self.replicas += min(1.0, budget_bytes / size)
        self.flow += speed / layers


def weights(draft: Draft) -> list[float]:
    """Return how much each Variant counts, in the draft's order."""
    wanted = [draft.wanted(state) for state in draft.variants]
    most = max(wanted, default=0.0)
    return [max(each, most * LEAST_SHARE) if most > 0 else 1.0 for each in wanted]


def place_fresh(draft: Draft, fresh: Sequence[GapPlan]) -> None:
    """Begin Variants that nobody holds, in as many copies as the free Workers give."""
    extra = _shares(draft, fresh)
    for plan in fresh:
        state = plan.state
        able = plan.used | (extra[state.key] & draft.free)
        candidates = draft.candidates(able, state.key)
        # Of many Workers whole copies are made anyway; there is nothing to choose between.
        place = target_placement if len(candidates) <= MOST_SEARCHED else fresh_placement
        placed = place(state.sizes, candidates)
        if sum(map(len, placed.values())) < state.sizes.layer_count:
            plan.issue()
            continue
        draft.free |= plan.used
        why = f"nobody serves {state.key}, and there is room for all of it"
        for worker_id, shard_range in sorted(_soonest(draft, state, placed).items()):
            draft.issue(load(worker_id, state.key, shard_range, DirectiveReason.GAP, why))


def _soonest(draft: Draft, state: VariantDraft, placed: Placement) -> Placement:
    """Begin with what covers the Variant soonest, where lines were measured.

    That is a part of the placement. Where it is not known how speeds depend on the Layers held, no
    placement is much better than another, and all free lines are taken if that is much sooner.
    """
    lines = {each: draft.workers[each].download_bytes_per_sec for each in placed}
    if len(placed) > MOST_SEARCHED or not all(lines.values()):
        return placed
    size = state.sizes.bytes_per_layer
    rates = {worker_id: line / size for worker_id, line in lines.items()}
    parts, seconds = first_parts(placed, rates, state.sizes.layer_count)
    if any(draft.workers[each].layer_rates for each in placed):
        return parts
    quick = GapPlan.of(draft, state)
    fill_quickly(quick)
    spread = {each.worker_id: each.shard_range for each in quick.orders}
    if not quick.complete or quick.promised:
        return parts
    spread_seconds = max(
        len(part) * size / (draft.workers[each].download_bytes_per_sec or UNMEASURED_BYTES_PER_SEC)
        for each, part in spread.items()
    )
    return spread if seconds > MUCH_LONGER * spread_seconds + MUCH_SECONDS else parts


def replicate(draft: Draft) -> None:
    """Order every free Worker that can hold a Layer to load a window; the fastest choose first."""
    covered = [state for state in draft.variants if not state.gaps]
    if len(draft.free) > FEW_WORKERS:
        _copy(draft, covered)
    needs = {state.key: Need(draft, state) for state in covered} if draft.free else {}
    weight = dict(zip((state.key for state in draft.variants), weights(draft), strict=True))
    chosen = sorted(draft.free, key=lambda each: (-draft.workers[each].speed, each))
    for worker_id in chosen[:MOST_WINDOWS]:
        ranked = sorted(
            needs.values(), key=lambda need: supply_of(need, weight[need.state.key]).rank()
        )
        _choose_window(draft, ranked, worker_id)


def supply_of(need: Need, weight: float) -> Supply:
    """Say what serves a covered Variant: as much as its thinnest Layer."""
    return Supply(need.state, weight, min(need.state.planned), min(need.flows))


def _choose_window(draft: Draft, ranked: Iterable[Need], worker_id: WorkerId) -> None:
    for need in ranked:
        for candidate in draft.candidates([worker_id], need.state.key):
            window = need.best_for(candidate)
            if window is not None:
                order = load(worker_id, need.state.key, window, need.reason, _why(need))
                draft.issue(order)
                need.add(window, draft.workers[worker_id].speed)
                return


def _why(need: Need) -> str:
    replicas, key = min(need.state.planned), need.state.key
    if replicas < SAFE_REPLICAS:
        return f"{replicas} Worker(s) serve some Layers of {key}: one loss would open a gap"
    return f"of all Variants {key} has least flow for what it is asked for, and most of it here"


def _copy(draft: Draft, covered: Sequence[VariantDraft]) -> None:
    """Place whole copies where the Workers of a share are enough for one."""
    for key, worker_ids in _shares(draft, (), covered).items():
        state = draft.states[key]
        if not worker_ids:
            continue
        placed = fresh_placement(state.sizes, draft.candidates(worker_ids, key))
        if sum(map(len, placed.values())) < state.sizes.layer_count:
            continue
        why = f"a whole copy of {key} fits on Workers that have nothing else to do"
        for worker_id, shard_range in sorted(placed.items()):
            draft.issue(load(worker_id, key, shard_range, DirectiveReason.REDUNDANCY, why))


def _shares(
    draft: Draft, fresh: Sequence[GapPlan], covered: Sequence[VariantDraft] | None = None
) -> dict[VariantKey, set[WorkerId]]:
    """Deal the free Workers out, largest first, always to the Variant that needs one most."""
    weight = dict(zip((state.key for state in draft.variants), weights(draft), strict=True))
    supplies = [_fresh_supply(draft, plan, weight[plan.state.key]) for plan in fresh]
    if covered is None:
        covered = [state for state in draft.variants if not state.gaps]
    supplies += [supply_of(Need(draft, state), weight[state.key]) for state in covered]
    shares: dict[VariantKey, set[WorkerId]] = {each.state.key: set() for each in supplies}
    # Kept in order: of thousands of Workers each changes the rank of one Variant.
    queue = sorted((supply.rank(), index) for index, supply in enumerate(supplies))
    for candidate in draft.largest:
        if candidate.worker_id in draft.free:
            place = _neediest(draft, supplies, queue, candidate)
            if place is not None:
                _, index = queue.pop(place)
                supply = supplies[index]
                supply.add(candidate.budget_bytes, candidate.speed)
                shares[supply.state.key].add(candidate.worker_id)
                insort(queue, (supply.rank(), index))
    return shares


def _neediest(
    draft: Draft,
    supplies: Sequence[Supply],
    queue: Iterable[tuple[Rank, int]],
    candidate: Candidate,
) -> int | None:
    """Find the place in the queue of the first Variant that this Worker can hold a Layer of."""
    quantizations = draft.workers[candidate.worker_id].quantizations
    for place, (_, index) in enumerate(queue):
        state = supplies[index].state
        able = state.key.quantization in quantizations
        if able and candidate.budget_bytes >= state.sizes.smallest_layer_bytes:
            return place
    return None


def _fresh_supply(draft: Draft, plan: GapPlan, weight: float) -> Supply:
    speed = sum(draft.workers[each].speed for each in sorted(plan.used))
    return Supply(plan.state, weight, 1.0, speed / plan.state.sizes.layer_count)
