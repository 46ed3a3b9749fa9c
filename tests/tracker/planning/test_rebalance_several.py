"""What every plan must hold over several models that are asked for more and less."""

import os
from collections.abc import Iterable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet_tracker.planning.capacity import LayerSizes, held_bytes, usable_bytes
from meshnet_tracker.planning.coverage import CoverageMap, routable_coverage
from meshnet_tracker.planning.snapshot import Demand, MeshSnapshot, VariantKey
from tests.tracker.planning.meshes import (
    GB,
    NO_HEADROOM,
    assert_sound,
    done,
    issued,
    plan,
    preset,
    settled,
    variant,
    worker,
)

EXAMPLES = 2000 if os.environ.get("CI") else 60
QUICK = settings(deadline=None, max_examples=EXAMPLES)
ASKED = st.sampled_from((0.0, 0.0, 1.0, 5.0, 50.0))
LINES = st.sampled_from((0.0, 0.02, 0.1))


@st.composite
def meshes(draw: st.DrawFn) -> MeshSnapshot:
    """Draw a Mesh of two or three models in which nobody holds anything."""
    presets = tuple(
        preset(variant(draw(st.integers(1, 9))), name=f"m{index}")
        for index in range(draw(st.integers(2, 3)))
    )
    pool = tuple(
        replace(
            worker(
                f"w{index}",
                draw(st.integers(0, 12)),
                speed=draw(st.sampled_from((0.5, 1.0, 2.0, 5.0))),
            ),
            download_bytes_per_sec=draw(LINES) * GB,
        )
        for index in range(draw(st.integers(0, 7)))
    )
    return asked(draw, MeshSnapshot(presets, pool))


def asked(draw: st.DrawFn, snapshot: MeshSnapshot) -> MeshSnapshot:
    demand = tuple(Demand(key, each) for key, _ in snapshot.variants() if (each := draw(ASKED)))
    return replace(snapshot, demand=demand)


@st.composite
def churned(draw: st.DrawFn) -> MeshSnapshot:
    """Draw a Mesh at rest that lost some Workers, and that is asked for something else now."""
    snapshot, _ = settled(draw(meshes()))
    left = tuple(view for view in snapshot.workers if draw(st.integers(0, 3)))
    return asked(draw, replace(snapshot, workers=left))


def coverages(snapshot: MeshSnapshot) -> dict[VariantKey, CoverageMap]:
    return {key: routable_coverage(snapshot, key) for key, _ in snapshot.variants()}


def room(snapshot: MeshSnapshot) -> int:
    return sum(view.vram_bytes // GB for view in snapshot.workers)


def needed(snapshot: MeshSnapshot, keys: Iterable[VariantKey] | None = None) -> int:
    wanted = None if keys is None else set(keys)
    return sum(
        served.layer_count for key, served in snapshot.variants() if not wanted or key in wanted
    )


@QUICK
@given(meshes())
def test_all_models_are_covered_where_memory_allows_and_none_is_a_half(
    snapshot: MeshSnapshot,
) -> None:
    end, _ = settled(snapshot)
    found = coverages(end).values()
    if room(snapshot) >= needed(snapshot):
        assert all(each.servable for each in found)
    begun = [each for each in found if any(each.counts)]
    assert len(begun) <= 1 or all(each.servable for each in begun)


@QUICK
@given(churned())
def test_after_losses_all_models_are_covered_again_where_memory_allows(
    snapshot: MeshSnapshot,
) -> None:
    end, _ = settled(snapshot)
    if room(snapshot) >= needed(snapshot):
        assert all(each.servable for each in coverages(end).values())


@QUICK
@given(churned())
def test_what_was_covered_and_is_asked_for_stays_covered(snapshot: MeshSnapshot) -> None:
    end, _ = settled(snapshot)
    wanted = {each.variant for each in snapshot.demand}
    after = coverages(end)
    for key, before in coverages(snapshot).items():
        if before.servable and (key in wanted or not wanted):
            assert after[key].servable


@QUICK
@given(meshes())
def test_the_most_wanted_model_that_fits_is_covered(snapshot: MeshSnapshot) -> None:
    end, _ = settled(snapshot)
    if not snapshot.demand:
        return
    most = max(snapshot.demand, key=lambda each: each.requests_per_second)
    ties = [
        each for each in snapshot.demand if each.requests_per_second == most.requests_per_second
    ]
    if len(ties) == 1 and room(snapshot) >= needed(snapshot, [most.variant]):
        assert coverages(end)[most.variant].servable


@QUICK
@given(churned(), st.data())
def test_no_order_of_completion_opens_a_gap_or_passes_a_budget(
    snapshot: MeshSnapshot, data: st.DataObject
) -> None:
    sizes = {key: LayerSizes.of(each) for key, each in snapshot.variants()}
    for _ in range(6):
        directives = plan(snapshot)
        after = issued(snapshot, directives)
        assert_sound(snapshot, directives, after, NO_HEADROOM)
        for view in after.workers:
            taken = held_bytes(view.held, sizes)
            assert taken is not None
            assert taken <= usable_bytes(view.vram_bytes, NO_HEADROOM)
        names = [view.worker_id for view in after.workers]
        snapshot = done(after, data.draw(st.sets(st.sampled_from(names)) if names else st.just(())))


@QUICK
@given(churned(), st.data())
def test_the_order_of_the_input_changes_nothing(
    snapshot: MeshSnapshot, data: st.DataObject
) -> None:
    shuffled = replace(
        snapshot,
        workers=tuple(data.draw(st.permutations(snapshot.workers))),
        presets=tuple(data.draw(st.permutations(snapshot.presets))),
        demand=tuple(data.draw(st.permutations(snapshot.demand))),
    )
    assert plan(shuffled) == plan(snapshot)


@QUICK
@given(meshes())
def test_every_directive_says_what_it_is_for(snapshot: MeshSnapshot) -> None:
    assert all(each.why for each in plan(snapshot))
