"""What every plan must hold, whatever the mesh: see the fixed point, coverage and Budgets."""

import os
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshnet_common.protocol.messages import DirectiveKind
from meshnet_tracker.planning.capacity import LayerSizes
from meshnet_tracker.planning.coverage import planned_coverage, routable_coverage
from meshnet_tracker.planning.rebalance import coming_variants
from meshnet_tracker.planning.route_table import RouteTable
from meshnet_tracker.planning.routes import NoRouteError, choose_route
from meshnet_tracker.planning.snapshot import Holding, MeshSnapshot, WorkerView
from tests.tracker.planning.meshes import (
    GB,
    KEY,
    NO_HEADROOM,
    NOW,
    assert_sound,
    done,
    held,
    issued,
    mesh,
    plan,
    preset,
    runs,
    settled,
    variant,
    worker,
)

SPEEDS = st.sampled_from((0.5, 1.0, 2.0, 5.0))
LINES = st.sampled_from((0.0, 0.04 * GB, 0.25 * GB))
EXAMPLES = 2000 if os.environ.get("CI") else 60
QUICK = settings(deadline=None, max_examples=EXAMPLES)


@st.composite
def workers(draw: st.DrawFn, name: str, sizes: LayerSizes, *, bound: bool) -> WorkerView:
    """Draw a Worker with any Budget, holding nothing or any run that fits it."""
    capacity = draw(st.integers(0, sizes.layer_count + 6))
    shards = []
    if draw(st.booleans()):
        start = 0 if bound else draw(st.integers(0, sizes.layer_count - 1))
        end = sizes.end_within(start, sizes.layer_count, capacity * GB)
        if end > start:
            shards.append(held(start, draw(st.integers(start + 1, end))))
    fits = all(sizes.range_bytes(shard.shard_range) <= capacity * GB for shard in shards)
    drawn = worker(
        name,
        capacity,
        *(shards if fits else ()),
        speed=draw(SPEEDS),
        bound=bound,
        sessions=draw(st.integers(0, 2)),
        cooling_until=draw(st.sampled_from((0.0, 0.0, 0.0, NOW + 1))),
    )
    return replace(drawn, download_bytes_per_sec=draw(LINES))


@st.composite
def meshes(draw: st.DrawFn, *, plain: bool = False) -> MeshSnapshot:
    """Draw a mesh of one Variant; a plain one has no embeddings, bound or cooling Workers."""
    extra = st.just(0) if plain else st.integers(0, 3)
    served = variant(
        draw(st.integers(1, 16)),
        embedding_bytes=draw(extra) * GB,
        head_bytes=draw(extra) * GB,
    )
    sizes = LayerSizes.of(served)
    pool = []
    for index in range(draw(st.integers(0, 7))):
        bound = not plain and draw(st.integers(0, 9)) == 9
        drawn = draw(workers(f"w{index}", sizes, bound=bound))
        pool.append(replace(drawn, cooling_until=0.0) if plain else drawn)
    return mesh(preset(served), *pool)


@QUICK
@given(meshes())
def test_planning_ends_in_a_fixed_point_and_every_pass_is_sound(snapshot: MeshSnapshot) -> None:
    end, _ = settled(snapshot)
    assert plan(end) == ()


@QUICK
@given(meshes(plain=True))
def test_full_coverage_is_reached_if_the_capacity_allows(snapshot: MeshSnapshot) -> None:
    layers = snapshot.presets[0].layer_count
    end, _ = settled(snapshot)
    coverage = routable_coverage(end, KEY)
    missing = max(0, layers - sum(view.vram_bytes // GB for view in snapshot.workers))
    assert len(coverage.missing_layers) == missing


@QUICK
@given(meshes(), st.data())
def test_the_order_of_the_input_changes_nothing(
    snapshot: MeshSnapshot, data: st.DataObject
) -> None:
    pool = data.draw(st.permutations(snapshot.workers))
    assert plan(replace(snapshot, workers=tuple(pool))) == plan(snapshot)


@QUICK
@given(meshes())
def test_what_was_ordered_is_not_ordered_again(snapshot: MeshSnapshot) -> None:
    directives = plan(snapshot)
    again = plan(issued(snapshot, directives))
    assert not {each.worker_id for each in directives} & {each.worker_id for each in again}


@QUICK
@given(meshes())
def test_directives_do_not_overlap_in_a_gap(snapshot: MeshSnapshot) -> None:
    gaps = planned_coverage(snapshot, KEY).gaps()
    loads = [each for each in plan(snapshot) if each.kind is DirectiveKind.LOAD_SHARD]
    # A Variant that nobody holds is placed in whole copies at once; that is no overlap.
    assume(any(view.held for view in snapshot.workers))
    for gap in gaps:
        parts = [part for each in loads if (part := each.shard_range.overlap(gap))]
        assert len({layer for part in parts for layer in part.layers}) == sum(map(len, parts))


@QUICK
@given(meshes(), st.data())
def test_no_order_of_completion_opens_a_gap(snapshot: MeshSnapshot, data: st.DataObject) -> None:
    for _ in range(12):
        directives = plan(snapshot)
        after = issued(snapshot, directives)
        assert_sound(snapshot, directives, after, NO_HEADROOM)
        names = [view.worker_id for view in after.workers]
        finished = data.draw(st.sets(st.sampled_from(names)) if names else st.just(set()))
        snapshot = done(after, finished)


@QUICK
@given(meshes(), st.data())
def test_after_a_loss_the_mesh_serves_again_if_it_can(
    snapshot: MeshSnapshot, data: st.DataObject
) -> None:
    snapshot, _ = settled(snapshot)
    if not snapshot.workers:
        return
    lost = data.draw(st.sampled_from(snapshot.workers))
    left = replace(snapshot, workers=tuple(w for w in snapshot.workers if w is not lost))
    before = routable_coverage(left, KEY).missing_layers
    end, _ = settled(left)
    assert set(routable_coverage(end, KEY).missing_layers) <= set(before)


@QUICK
@given(st.integers(2, 5), st.integers(1, 8), st.data())
def test_one_lost_worker_moves_only_who_its_layers_need(
    members: int, width: int, data: st.DataObject
) -> None:
    chain = [
        worker(f"w{index}", width, held(index * width, (index + 1) * width))
        for index in range(members)
    ]
    lost = data.draw(st.integers(0, members - 1))
    pool = [*chain[:lost], *chain[lost + 1 :], worker("spare", width)]
    (order,) = plan(mesh(members * width, *pool))
    assert (order.worker_id, order.shard_range) == ("spare", chain[lost].held[0].shard_range)


@QUICK
@given(st.integers(1, 40), st.lists(st.tuples(st.integers(1, 20), SPEEDS), min_size=1, max_size=6))
def test_joiners_one_by_one_never_leave_more_uncovered_than_memory_does(
    layers: int, joiners: list[tuple[int, float]]
) -> None:
    snapshot = mesh(layers)
    for index, (capacity, speed) in enumerate(joiners):
        joined = worker(f"w{index}", capacity, speed=speed)
        snapshot, _ = settled(replace(snapshot, workers=(*snapshot.workers, joined)))
        room = sum(each for each, _ in joiners[: index + 1])
        gaps = routable_coverage(snapshot, KEY).gaps()
        assert sum(map(len, gaps)) == max(0, layers - room), runs(snapshot)


@QUICK
@given(meshes())
def test_a_route_exists_exactly_when_the_coverage_map_has_no_gap(snapshot: MeshSnapshot) -> None:
    layers = snapshot.presets[0].layer_count
    coverage = routable_coverage(snapshot, KEY)
    if coverage.servable:
        hops = choose_route(RouteTable.of(snapshot.workers), KEY, layers)
        assert [layer for hop in hops for layer in hop.shard_range.layers] == list(range(layers))
    else:
        with pytest.raises(NoRouteError) as caught:
            choose_route(RouteTable.of(snapshot.workers), KEY, layers)
        assert caught.value.missing == coverage.gaps()


@QUICK
@given(
    st.lists(st.integers(1, 9), min_size=2, max_size=3),
    st.lists(st.tuples(st.integers(0, 10), SPEEDS), max_size=6),
    st.data(),
)
def test_several_models_are_never_halves_and_losses_keep_every_plan_sound(
    models: list[int], lent: list[tuple[int, float]], data: st.DataObject
) -> None:
    presets = tuple(preset(variant(n), name=f"m{index}") for index, n in enumerate(models))
    pool = tuple(
        replace(worker(f"w{i}", n, speed=speed), download_bytes_per_sec=data.draw(LINES))
        for i, (n, speed) in enumerate(lent)
    )
    end, _ = settled(MeshSnapshot(presets, pool))
    coverages = [routable_coverage(end, key) for key, _ in end.variants()]
    begun = [each for each in coverages if any(each.counts)]
    assert len(begun) <= 1 or all(each.servable for each in begun)
    left = tuple(view for view in end.workers if data.draw(st.booleans()))
    settled(replace(end, workers=left))


@QUICK
@given(meshes())
def test_a_model_that_is_said_to_come_does(snapshot: MeshSnapshot) -> None:
    if KEY in coming_variants(snapshot, NO_HEADROOM, NOW):
        end, _ = settled(snapshot)
        assert routable_coverage(end, KEY).servable


@QUICK
@given(meshes(), st.data())
def test_a_leaving_worker_counts_as_if_it_were_gone(
    snapshot: MeshSnapshot, data: st.DataObject
) -> None:
    names = [view.worker_id for view in snapshot.workers]
    gone = data.draw(st.sets(st.sampled_from(names)) if names else st.just(set()))
    left = replace(snapshot, workers=tuple(w for w in snapshot.workers if w.worker_id not in gone))
    marked = tuple(_leaving(w) if w.worker_id in gone else w for w in snapshot.workers)
    assert plan(replace(snapshot, workers=marked)) == plan(left)


def _leaving(view: WorkerView) -> WorkerView:
    draining = tuple(replace(shard, holding=Holding.DRAINING) for shard in view.held)
    return replace(view, held=draining, leaving=True)
