"""Budgets cut exactly for a Variant: whoever is first or last pays for the ends of it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet_common.presets import Variant
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.capacity import LayerSizes
from meshnet_tracker.planning.coverage import count_layers, routable_coverage
from meshnet_tracker.planning.snapshot import MeshSnapshot, PlannerPolicy, WorkerView
from tests.tracker.planning.meshes import (
    KEY,
    mesh,
    preset,
    runs,
    settled,
    variant,
    worker,
)

SMOL = variant([7_080_192] * 30, embedding_bytes=56_623_104, head_bytes=56_624_256)
MIB = 1024 * 1024


def cut_budgets(model: Variant, boundaries: Sequence[int]) -> list[int]:
    """Give what each of these consecutive ranges takes, in bytes."""
    sizes = LayerSizes.of(model)
    return [sizes.range_bytes(ShardRange(start, end)) for start, end in pairwise(boundaries)]


def with_a_fifth_kept(needed_bytes: int) -> int:
    """Round up to whole MiB, as an Operator states a Budget."""
    return -(-needed_bytes * 5 // (4 * MIB)) * MIB


def pool_of(budgets: Sequence[int]) -> list[WorkerView]:
    return [
        worker(f"w{index}", vram_bytes=budget, speed=70.0 + index)
        for index, budget in enumerate(budgets)
    ]


def assert_covered(snapshot: MeshSnapshot) -> None:
    assert routable_coverage(snapshot, KEY).servable, runs(snapshot)


def join_one_by_one(model: Variant, pool: Sequence[WorkerView], policy: PlannerPolicy) -> None:
    snapshot = mesh(preset(model))
    for view in pool:
        snapshot = replace(snapshot, workers=(*snapshot.workers, view))
        snapshot, _ = settled(snapshot, policy)
    assert_covered(snapshot)


SMOL_ORDERS = [
    order
    for boundaries in ((0, 15, 30), (0, 10, 20, 30), (0, 8, 15, 22, 30))
    for order in permutations(map(with_a_fifth_kept, cut_budgets(SMOL, boundaries)))
]


@pytest.mark.parametrize("budgets", SMOL_ORDERS)
def test_exact_budgets_cover_everything_in_one_pass(budgets: tuple[int, ...]) -> None:
    snapshot, passes = settled(mesh(preset(SMOL), *pool_of(budgets)), PlannerPolicy())
    assert_covered(snapshot)
    assert passes == 1


@pytest.mark.parametrize("budgets", SMOL_ORDERS)
def test_exact_budgets_cover_everything_in_every_order_of_joining(budgets: tuple[int, ...]) -> None:
    join_one_by_one(SMOL, pool_of(budgets), PlannerPolicy())


@st.composite
def tight_pools(
    draw: st.DrawFn, *, most_layers: int, most_workers: int
) -> tuple[Variant, list[WorkerView]]:
    """Draw a model and the Budgets of exact consecutive ranges of it, shuffled, with some slack."""
    layers = draw(st.integers(1, most_layers))
    layer = st.integers(3, 9)
    even = draw(st.booleans())
    model = variant(
        [draw(layer)] * layers if even else [draw(layer) for _ in range(layers)],
        embedding_bytes=draw(st.integers(0, 40)),
        head_bytes=draw(st.integers(0, 40)),
    )
    cuts = draw(st.sets(st.integers(1, layers), max_size=most_workers - 1))
    budgets = cut_budgets(model, sorted({0, layers} | cuts))
    lent = [budget + draw(st.integers(0, 2)) for budget in draw(st.permutations(budgets))]
    return model, pool_of(lent)


@settings(deadline=None, max_examples=150)
@given(tight_pools(most_layers=20, most_workers=6))
def test_any_exact_budgets_cover_everything_at_once(
    drawn: tuple[Variant, list[WorkerView]],
) -> None:
    model, pool = drawn
    snapshot, _ = settled(mesh(preset(model), *pool))
    assert_covered(snapshot)


@settings(deadline=None, max_examples=100)
@given(tight_pools(most_layers=7, most_workers=3))
def test_joiners_one_by_one_reach_full_coverage_if_any_safe_way_does(
    drawn: tuple[Variant, list[WorkerView]],
) -> None:
    model, pool = drawn
    snapshot = before = mesh(preset(model))
    for view in pool:
        before = replace(snapshot, workers=(*snapshot.workers, view))
        snapshot, _ = settled(before)
    covered = routable_coverage(snapshot, KEY).servable
    assert covered or not a_safe_way_exists(LayerSizes.of(model), before), runs(before)


@settings(deadline=None, max_examples=60)
@given(tight_pools(most_layers=20, most_workers=8))
def test_tight_joiners_end_in_a_fixed_point(drawn: tuple[Variant, list[WorkerView]]) -> None:
    model, pool = drawn
    snapshot = mesh(preset(model))
    for view in pool:
        snapshot, _ = settled(replace(snapshot, workers=(*snapshot.workers, view)))


Runs = tuple[tuple[int, int] | None, ...]


def a_safe_way_exists(sizes: LayerSizes, snapshot: MeshSnapshot) -> bool:
    """Try every order of loads that fit and drops of what others hold, one after the other."""
    held = runs(snapshot)
    start = tuple(held.get(str(view.worker_id)) for view in snapshot.workers)
    seen, waiting = {start}, [start]
    while waiting:
        now = waiting.pop()
        counts = count_layers(
            [ShardRange(*run) for run in now if run is not None], sizes.layer_count
        )
        if all(counts):
            return True
        for index, view in enumerate(snapshot.workers):
            for after in _next_runs(sizes, view.vram_bytes, now[index], counts):
                reached: Runs = (*now[:index], after, *now[index + 1 :])
                if reached not in seen:
                    seen.add(reached)
                    waiting.append(reached)
    return False


def _next_runs(
    sizes: LayerSizes, budget: int, run: tuple[int, int] | None, counts: Sequence[int]
) -> Iterator[tuple[int, int] | None]:
    layers = range(sizes.layer_count + 1)
    for start, end in combinations(layers, 2):
        loaded = run is None or (start <= run[0] and run[1] <= end)
        if loaded and sizes.range_bytes(ShardRange(start, end)) <= budget:
            yield start, end
    if run is not None:
        for left in [*combinations(range(run[0], run[1] + 1), 2), None]:
            kept = range(*left) if left else range(0)
            if all(counts[layer] > 1 for layer in range(*run) if layer not in kept):
                yield left
