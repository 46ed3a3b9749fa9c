from itertools import pairwise
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshnet_common.protocol.messages import CoverageRow, ShardReport, ShardState
from meshnet_tracker.planning.snapshot import Holding, VariantKey
from meshnet_tracker.store.revisions import Weights
from meshnet_tracker.store.store import Store
from tests.tracker.builders import DIGEST, MODEL, NOW, drop, preset, shard
from tests.tracker.store.meshes import beat, issue, join, lose

LAYERS = 12
WEIGHTS = Weights(DIGEST, LAYERS)


def row(start: int, end: int, count: int) -> CoverageRow:
    return CoverageRow(start_layer=start, end_layer=end, worker_count=count)


async def test_without_workers_the_whole_variant_is_one_gap(store: Store) -> None:
    assert await store.coverage(MODEL, WEIGHTS) == (row(0, 12, 0),)


async def test_replicas_are_counted_layer_by_layer(store: Store) -> None:
    await join(store, "w1", shard(0, 8))
    await join(store, "w2", shard(6, 10))
    expected = (row(0, 6, 1), row(6, 8, 2), row(8, 10, 1), row(10, 12, 0))
    assert await store.coverage(MODEL, WEIGHTS) == expected


async def test_adjacent_runs_of_equal_count_are_one_row(store: Store) -> None:
    await join(store, "w1", shard(0, 6))
    await join(store, "w2", shard(6, 12))
    assert await store.coverage(MODEL, WEIGHTS) == (row(0, 12, 1),)


async def test_loading_draining_and_lost_do_not_cover(store: Store) -> None:
    await join(store, "w1", shard(0, 12, ShardState.LOADING))
    await join(store, "w2", shard(0, 12, ShardState.DRAINING))
    await join(store, "w3", shard(0, 12), now=NOW - 100)
    await lose(store, NOW - 50, NOW)
    assert await store.coverage(MODEL, WEIGHTS) == (row(0, 12, 0),)


async def test_a_drop_uncovers_from_the_moment_it_is_issued(store: Store) -> None:
    await join(store, "w1", shard(0, 12))
    await issue(store, drop("w1", 4, 6))
    assert await store.coverage(MODEL, WEIGHTS) == (row(0, 4, 1), row(4, 6, 0), row(6, 12, 1))


async def test_variants_are_counted_apart(store: Store) -> None:
    other = VariantKey("tiny", "float32")
    await join(store, "w1", shard(0, 6), shard(6, 12, model=other))
    assert await store.coverage(other, WEIGHTS) == (row(0, 6, 0), row(6, 12, 1))


async def test_a_report_of_more_layers_than_there_are_does_not_count(store: Store) -> None:
    await join(store, "w1", shard(0, 13))
    assert await store.coverage(MODEL, WEIGHTS) == (row(0, 12, 0),)


async def test_a_shard_of_other_weights_does_not_count(store: Store) -> None:
    for number, digest in enumerate(("", DIGEST, "other")):
        await join(store, f"w{number}", shard(0, 12, digest=digest))
    assert await store.coverage(MODEL, WEIGHTS) == (row(0, 12, 2),)


shard_ranges = st.tuples(st.integers(0, LAYERS - 1), st.integers(1, LAYERS)).map(
    lambda pick: (pick[0], min(LAYERS, pick[0] + pick[1]))
)
reports = st.builds(
    lambda layers, state, digest: shard(layers[0], layers[1], state, digest=digest),
    st.one_of(shard_ranges, st.just((0, LAYERS + 1))),
    st.sampled_from(ShardState),
    # Of one Worker only what it held before can be other weights.
    st.sampled_from(["", DIGEST]),
)
meshes = st.lists(
    st.tuples(st.lists(reports, max_size=3), st.lists(shard_ranges, max_size=2), st.booleans()),
    max_size=4,
)


@given(mesh=meshes)
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_the_databases_map_is_the_snapshots_map(
    mesh: list[tuple[list[ShardReport], list[tuple[int, int]], bool]], tmp_path: Path
) -> None:
    store = Store.open(str(tmp_path / f"{abs(hash(str(mesh)))}.sqlite3"))
    await store.migrate()
    await store.add_preset(preset(layers=LAYERS), NOW)
    for number, (held, dropped, leaving) in enumerate(mesh):
        await join(store, f"w{number}")
        await beat(store, f"w{number}", *held)
        for shard_range in dropped:
            await issue(store, drop(f"w{number}", *shard_range))
        await beat(store, f"w{number}", *held, leaving=leaving)
    counts = [0] * LAYERS
    for view in (await store.load_snapshot()).snapshot.workers:
        for held_shard in view.held:
            if held_shard.variant != MODEL:
                continue
            for layer in held_shard.shard_range.layers:
                counts[layer] += held_shard.holding is Holding.READY
    rows = await store.coverage(MODEL, WEIGHTS)
    await store.close()
    assert [r.worker_count for r in rows for _ in range(r.start_layer, r.end_layer)] == counts
    assert all(one.worker_count != other.worker_count for one, other in pairwise(rows))
