import pytest

from meshnet_common.ids import WorkerId
from meshnet_tracker.records import WorkerPlace
from meshnet_tracker.store.losses import MOST_AT_ONCE, TOGETHER_SECONDS
from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW, registration, shard
from tests.tracker.store.meshes import join, leave, lose, register, turn

W1, W2 = WorkerId("w1"), WorkerId("w2")


async def test_who_is_late_is_named_beside_the_number_of_those_who_are_not_lost(
    store: Store,
) -> None:
    for name, seconds in (("w1", 0), ("w2", 0), ("w3", 20)):
        await join(store, name, now=NOW + seconds)
    late = await store.losses.late(NOW + 1)
    assert [place.worker_id for place in late.places] == ["w1", "w2"]
    assert late.live == 3
    await lose(store, NOW + 1, NOW + 13)
    assert (await store.losses.late(NOW + 1)).places == ()


async def test_who_was_heard_of_meanwhile_is_not_marked(store: Store) -> None:
    for name in ("w1", "w2"):
        await join(store, name, shard(0, 3))
    late = [place.worker_id for place in (await store.losses.late(NOW + 1)).places]
    await store.losses.note_alive([W2], NOW + 10)
    assert await store.losses.mark(late, NOW + 1, NOW + 13, await turn(store)) == ("w1",)


async def test_who_answered_a_probe_is_not_late_any_more(store: Store) -> None:
    await join(store, "w1", shard(0, 3))
    await store.losses.note_alive([W1], NOW + 20)
    assert (await store.losses.late(NOW + 15)).places == ()
    (worker,) = await store.workers()
    assert (worker.seen_at, worker.shards) == (NOW + 20, (shard(0, 3),))


@pytest.mark.parametrize("count", [MOST_AT_ONCE + 1])
async def test_many_are_marked_in_several_transactions(store: Store, count: int) -> None:
    for number in range(count):
        await join(store, f"w{number}")
    assert len(await lose(store, NOW + 1, NOW + 13)) == count
    assert all(worker.is_lost for worker in await store.workers())


async def places_of(store: Store, *names: str) -> list[WorkerPlace]:
    return list(await store.losses.places([WorkerId(name) for name in names]))


async def test_workers_that_do_not_answer_one_tracker_are_not_all_marked_one_by_one(
    store: Store,
) -> None:
    names = [f"w{number:02}" for number in range(30)]
    for name in names:
        await join(store, name)
    places = await places_of(store, *names)
    marked = [await store.losses.mark_unreachable(place, NOW + 1) for place in places]
    assert marked == [True] * 6 + [False] * 24
    long_after = NOW + 2 + TOGETHER_SECONDS
    assert await store.losses.mark_unreachable(places[-1], long_after)


async def test_who_left_is_not_counted_among_the_lost(store: Store) -> None:
    names = [f"w{number}" for number in range(8)]
    for name in names:
        await join(store, name)
    for name in names[:6]:
        await leave(store, name)
    (place,) = await places_of(store, "w7")
    assert await store.losses.mark_unreachable(place, NOW + 1)


async def test_witnesses_are_who_was_heard_of_last(store: Store) -> None:
    for seconds, name in enumerate(("w1", "w2", "w3", "w4")):
        await join(store, name, now=NOW + seconds)
    await register(store, registration("silent"), NOW + 9)
    await leave(store, "w3", NOW + 9)
    found = await store.losses.witnesses([WorkerId("w4")], 3)
    assert [place.worker_id for place in found] == ["w2", "w1"]
