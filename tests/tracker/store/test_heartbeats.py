import msgspec
import pytest

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import Heartbeat, RoundTrip, ShardState
from meshnet_tracker.records import Beat
from meshnet_tracker.store.heartbeats import Heard
from meshnet_tracker.store.snapshots import MeshNumbers
from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW, TOKEN_SHA256, heartbeat, load, registration, shard
from tests.tracker.store.meshes import issue, join, open_for, register

W1 = WorkerId("w1")
NOTHING = MeshNumbers()


def beat_of(worker_id: str, body: Heartbeat, token: str = TOKEN_SHA256) -> Beat:
    return Beat(WorkerId(worker_id), token, body)


async def record(store: Store, *beats: Beat, now: float = NOW) -> tuple[Heard, ...]:
    return await store.heartbeats.record(beats, now + 600, now)


async def test_many_heartbeats_are_taken_at_once_and_each_is_answered(store: Store) -> None:
    await join(store, "w1", shard(0, 3))
    await join(store, "w2", shard(3, 6))
    await register(store, registration("w3"), NOW)
    outcomes = await record(
        store,
        beat_of("w1", heartbeat(shard(0, 3))),
        beat_of("w2", heartbeat(shard(3, 5))),
        beat_of("w3", heartbeat()),
        beat_of("stranger", heartbeat()),
        beat_of("w1", heartbeat(), token="f" * 64),
        now=NOW + 5,
    )
    assert outcomes == (Heard.TAKEN, Heard.NEWS, Heard.NEWS, Heard.REFUSED, Heard.REFUSED)
    w1, w2, w3 = await store.workers()
    assert [w1.shards, w2.shards, w3.shards] == [(shard(0, 3),), (shard(3, 5),), ()]
    assert {worker.seen_at for worker in (w1, w2, w3)} == {NOW + 5}
    assert w3.is_heard


async def test_of_two_heartbeats_of_one_worker_the_later_word_counts(store: Store) -> None:
    await join(store, "w1", shard(0, 3))
    outcomes = await record(
        store, beat_of("w1", heartbeat(sessions=1)), beat_of("w1", heartbeat(shard(0, 4)))
    )
    assert outcomes == (Heard.NEWS, Heard.NEWS)
    (worker,) = await store.workers()
    assert (worker.sessions, worker.shards) == (0, (shard(0, 4),))


async def test_a_heartbeat_that_says_nothing_new_changes_nothing_but_its_time(
    store: Store,
) -> None:
    await join(store, "w1", shard(0, 3))
    numbers = (await store.mesh.changes(NOTHING)).numbers
    assert await record(store, beat_of("w1", heartbeat(shard(0, 3))), now=NOW + 9) == (Heard.TAKEN,)
    assert (await store.mesh.changes(numbers)).workers == {}
    assert (await store.mesh.changes(numbers)).numbers == numbers
    assert (await store.workers())[0].seen_at == NOW + 9


async def test_a_load_figure_that_changed_is_a_change_but_no_news(store: Store) -> None:
    await join(store, "w1", shard(0, 3))
    numbers = (await store.mesh.changes(NOTHING)).numbers
    body = msgspec.structs.replace(heartbeat(shard(0, 3)), sessions=3, queued=2)
    assert await record(store, beat_of("w1", body)) == (Heard.TAKEN,)
    changes = await store.mesh.changes(numbers)
    assert (changes.workers, changes.loads) == ({}, {W1: (3, 2, body.kv_bytes_free)})


async def test_what_was_not_measured_again_stays_as_it_was(store: Store) -> None:
    await join(store, "w1")
    measured = msgspec.structs.replace(
        heartbeat(),
        decode_tokens_per_sec_per_layer=123.0,
        speeds_of="tiny",
        link_bytes_per_sec=5e6,
        download_bytes_per_sec=7e6,
        round_trips=(RoundTrip(worker_id="w2", seconds=0.5),),
    )
    await record(store, beat_of("w1", measured))
    await record(store, beat_of("w1", msgspec.structs.replace(heartbeat(), sessions=1)))
    (view,) = (await store.load_snapshot()).snapshot.workers
    assert view.speed == 120.0
    assert (view.uplink_bytes_per_sec, view.download_bytes_per_sec) == (5e6, 7e6)
    assert view.round_trips == ()


async def test_bytes_in_heartbeats_move_the_deadlines_of_their_directives(store: Store) -> None:
    await join(store, "w1")
    await join(store, "w2")
    await issue(store, load("w1", 0, 3), load("w2", 3, 6))
    loading = shard(0, 3, ShardState.LOADING, bytes_done=10)
    await record(
        store, beat_of("w1", heartbeat(loading)), beat_of("w2", heartbeat()), now=NOW + 100
    )
    (moved,), (kept,) = await open_for(store, "w1"), await open_for(store, "w2")
    assert (moved.deadline, kept.deadline) == (NOW + 700, NOW + 600)


async def test_leaving_is_news_once_and_ends_the_directives(store: Store) -> None:
    await join(store, "w1")
    await issue(store, load("w1", 0, 3))
    body = heartbeat(leaving=True)
    assert await record(store, beat_of("w1", body)) == (Heard.NEWS,)
    assert await record(store, beat_of("w1", body)) == (Heard.TAKEN,)
    assert await open_for(store, "w1") == []


@pytest.mark.parametrize("epoch", [0, 7])
async def test_an_epoch_seen_above_ours_is_continued(store: Store, epoch: int) -> None:
    await join(store, "w1")
    await record(store, beat_of("w1", heartbeat(directive_epoch=epoch)))
    assert await store.directives_issued_above(0) == (epoch, ())


async def test_what_a_worker_told_another_tracker_counts(store: Store, database: str) -> None:
    await join(store, "w1", shard(0, 3))
    await record(store, beat_of("w1", heartbeat(shard(0, 3))))
    other = Store.open(database)
    assert await record(other, beat_of("w1", heartbeat(shard(0, 5)))) == (Heard.NEWS,)
    assert await record(other, beat_of("w1", heartbeat(shard(0, 5), sessions=2))) == (Heard.TAKEN,)
    await other.close()
    assert await record(store, beat_of("w1", heartbeat(shard(0, 3)))) == (Heard.NEWS,)
    (worker,) = await store.workers()
    assert (worker.shards, worker.sessions) == ((shard(0, 3),), 0)


async def test_an_old_token_is_refused_also_where_its_words_are_remembered(
    store: Store, database: str
) -> None:
    await join(store, "w1", shard(0, 3))
    other = Store.open(database)
    await register(other, registration("w1"), NOW, "f" * 64)
    await other.close()
    assert await record(store, beat_of("w1", heartbeat(shard(0, 3)))) == (Heard.REFUSED,)
    new = beat_of("w1", heartbeat(shard(0, 3)), token="f" * 64)
    assert await record(store, new) == (Heard.NEWS,)
