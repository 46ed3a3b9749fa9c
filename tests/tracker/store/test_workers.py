import msgspec

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import DirectiveReport, DirectiveState
from meshnet_tracker.records import Beat
from meshnet_tracker.store.heartbeats import Heard
from meshnet_tracker.store.revisions import Weights
from meshnet_tracker.store.store import Store
from meshnet_tracker.store.workers import FORGET_LOST_AFTER_SECONDS
from tests.tracker.builders import (
    DIGEST,
    MODEL,
    NOW,
    TOKEN_SHA256,
    drop,
    heartbeat,
    load,
    preset,
    registration,
    shard,
)
from tests.tracker.store.meshes import (
    beat,
    hear,
    issue,
    join,
    leave,
    lose,
    open_for,
    register,
    tell,
)

W1 = WorkerId("w1")


async def test_a_worker_is_known_by_its_token_only(store: Store) -> None:
    await join(store, "w1")
    shown = [(W1, TOKEN_SHA256), (W1, "f" * 64), (WorkerId("stranger"), TOKEN_SHA256)]
    assert await store.callers.know(shown) == (True, False, False)


async def test_registering_again_voids_the_old_token_and_shards(store: Store) -> None:
    await join(store, "w1", shard(0, 6))
    await issue(store, load("w1", 6, 8))
    await register(store, registration("w1", url="http://127.0.0.1:9"), token_sha256="b" * 64)
    (worker,) = await store.workers()
    assert (worker.url, worker.shards, worker.directives) == ("http://127.0.0.1:9", (), ())
    assert await store.callers.know([(W1, TOKEN_SHA256)]) == (False,)


async def test_measured_speeds_are_kept_apart_until_the_next_registration(store: Store) -> None:
    offered = msgspec.structs.replace(
        registration("w1", speed=7.0).capabilities,
        decode_tokens_per_sec_per_layer=10.0,
        prefill_tokens_per_sec_per_layer=100.0,
        memory_bytes_per_sec=1e9,
        link_bytes_per_sec=1e6,
    )
    joining = msgspec.structs.replace(registration("w1"), capabilities=offered)
    await register(store, joining, NOW)
    (worker,) = await store.workers()
    assert (worker.capabilities, worker.speeds_of) == (offered, offered.benchmark_model)
    measured = msgspec.structs.replace(
        heartbeat(),
        decode_tokens_per_sec_per_layer=20.0,
        prefill_tokens_per_sec_per_layer=200.0,
        speeds_of="tiny",
        link_bytes_per_sec=2e6,
    )
    for body in (measured, heartbeat()):
        await hear(store, W1, body)
    (worker,) = await store.workers()
    assert worker.speeds_of == "tiny"
    assert worker.capabilities == msgspec.structs.replace(
        offered,
        decode_tokens_per_sec_per_layer=20.0,
        prefill_tokens_per_sec_per_layer=200.0,
        link_bytes_per_sec=2e6,
    )


async def test_a_worker_that_dies_while_it_loads_cools_down(store: Store) -> None:
    await join(store, "w1")
    await issue(store, load("w1", 0, 6))
    (order,) = await open_for(store, "w1")
    loading = DirectiveReport(state=DirectiveState.LOADING)
    await tell(store, "w1", order.id, loading)
    await register(store, registration("w1"), NOW)
    (worker,) = await store.workers()
    assert (worker.failures, worker.cooling_until) == (1, NOW + 10)


async def test_only_workers_that_fell_silent_are_lost(store: Store) -> None:
    await join(store, "w1", shard(0, 3))
    await join(store, "w2", shard(3, 6), now=NOW + 10)
    assert await lose(store, NOW + 1, NOW + 13) == ("w1",)
    assert await lose(store, NOW + 1, NOW + 14) == ()
    assert [view.worker_id for view in (await store.load_snapshot()).snapshot.workers] == ["w2"]


async def test_a_lost_workers_directives_are_closed(store: Store) -> None:
    await join(store, "w1")
    await issue(store, load("w1", 0, 6))
    await lose(store, NOW + 1, NOW + 13)
    assert await open_for(store, "w1") == []


async def test_a_heartbeat_brings_a_lost_worker_back(store: Store) -> None:
    await join(store, "w1", shard(0, 6))
    await lose(store, NOW + 1, NOW + 13)
    assert await beat(store, "w1", shard(0, 6), now=NOW + 14)
    (worker,) = await store.workers()
    assert (worker.is_lost, worker.shards) == (False, (shard(0, 6),))


async def test_a_worker_lost_for_a_day_is_forgotten(store: Store) -> None:
    await join(store, "w1")
    await lose(store, NOW + 1, NOW + 13)
    later = NOW + 14 + FORGET_LOST_AFTER_SECONDS
    await join(store, "w2", now=later - 100)
    await store.losses.sweep(later)
    assert [worker.worker_id for worker in await store.workers()] == ["w2"]


async def test_a_worker_that_leaves_takes_everything_along(store: Store) -> None:
    await join(store, "w1", shard(0, 6))
    await issue(store, load("w1", 6, 8))
    await leave(store, W1)
    assert await store.workers() == ()
    await join(store, "w1")
    assert await open_for(store, "w1") == []


async def test_a_worker_that_has_left_counts_nowhere_whatever_it_still_says(store: Store) -> None:
    await store.add_preset(preset(), NOW)
    for name in ("w1", "w2"):
        await join(store, name, shard(0, 6))
    await issue(store, load("w1", 0, 6))
    await leave(store, W1)
    (refused,) = await store.heartbeats.record(
        [Beat(W1, TOKEN_SHA256, heartbeat(shard(0, 6)))], NOW + 600, NOW
    )
    assert refused is Heard.REFUSED
    (row,) = await store.coverage(MODEL, Weights(DIGEST, 6))
    assert row.worker_count == 1
    # Nothing is ordered of it, and nobody's last copy is dropped because of it.
    assert await issue(store, load("w1", 0, 3), drop("w2", 0, 3)) == ()
    late = await store.losses.late(NOW + 1)
    assert ([place.worker_id for place in late.places], late.live) == (["w2"], 1)
    assert await store.losses.places([W1]) == ()


async def test_a_worker_that_could_not_be_reached_is_lost_as_one_that_fell_silent(
    store: Store,
) -> None:
    await join(store, "w1", shard(0, 3))
    await join(store, "w2", shard(3, 6))
    await issue(store, load("w1", 3, 6))
    (place,) = await store.losses.places([W1, WorkerId("unknown")])
    assert (place.worker_id, place.url) == ("w1", registration("w1").url)
    assert await store.losses.mark_unreachable(place, NOW + 1)
    assert not await store.losses.mark_unreachable(place, NOW + 1)
    assert await store.losses.places([W1]) == ()
    assert await open_for(store, "w1") == []
    first, second = await store.workers()
    assert (first.is_lost, first.shards, second.is_lost) == (True, (), False)


async def test_a_worker_that_registered_elsewhere_since_is_not_lost(store: Store) -> None:
    await join(store, "w1", shard(0, 6))
    (place,) = await store.losses.places([W1])
    for url, now in ((registration().url, NOW + 1), ("http://127.0.0.1:9", NOW)):
        await register(store, registration("w1", url=url), now)
        assert not await store.losses.mark_unreachable(place, NOW + 2)


async def test_a_leaving_worker_gets_no_directive_and_what_it_was_told_is_void(
    store: Store,
) -> None:
    await join(store, "w1", shard(0, 3))
    await issue(store, load("w1", 3, 6))
    assert await beat(store, "w1", shard(0, 3), leaving=True)
    assert not await beat(store, "w1", shard(0, 3), leaving=True)
    assert await open_for(store, "w1") == []
    assert await issue(store, load("w1", 3, 6)) == ()
    (worker,) = await store.workers()
    assert worker.is_leaving
    assert worker.failures == 0


async def test_a_worker_that_registers_again_or_stays_is_no_longer_leaving(store: Store) -> None:
    await join(store, "w1", shard(0, 3))
    for come_back in (lambda: beat(store, "w1"), lambda: join(store, "w1")):
        await beat(store, "w1", leaving=True)
        await come_back()
        (worker,) = await store.workers()
        assert not worker.is_leaving
