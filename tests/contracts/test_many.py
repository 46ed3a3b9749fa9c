"""Everything that takes many names at once takes more than a statement has places for them."""

import pytest

from meshnet_common.ids import WorkerId
from meshnet_tracker.records import Poll
from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW, TOKEN_SHA256, shard
from tests.tracker.store.meshes import join, turn

PLACES = 32_767
"""So many PostgreSQL's protocol has."""

MANY = [WorkerId(f"nobody-{number}") for number in range(PLACES + 1)]
W1 = WorkerId("w1")


async def places(store: Store) -> object:
    return [place.worker_id for place in await store.losses.places([*MANY, W1])]


async def witnesses(store: Store) -> object:
    return [place.worker_id for place in await store.losses.witnesses(MANY, 3)]


async def note_alive(store: Store) -> object:
    await store.losses.note_alive([*MANY, W1], NOW + 9)
    return [worker.worker_id for worker in await store.workers() if worker.seen_at == NOW + 9]


async def know(store: Store) -> object:
    known = await store.callers.know([(name, TOKEN_SHA256) for name in [*MANY, W1]])
    return [name for name, is_known in zip([*MANY, W1], known, strict=True) if is_known]


async def poll(store: Store) -> object:
    polls = [Poll(name, TOKEN_SHA256, 0) for name in [*MANY, W1]]
    found = await store.callers.poll(polls)
    return [poll.worker_id for poll, one in zip(polls, found, strict=True) if one.is_known]


async def leave(store: Store) -> object:
    left = await store.callers.leave([(name, TOKEN_SHA256) for name in [*MANY, W1]], NOW)
    return [name for name, has_left in zip([*MANY, W1], left, strict=True) if has_left]


async def forget_keys(store: Store) -> object:
    await store.forget_signing_keys(MANY)
    return [W1]


WAYS = (places, witnesses, note_alive, know, poll, leave, forget_keys)


@pytest.mark.parametrize("way", WAYS)
async def test_more_names_than_a_statement_has_places_for(store: Store, way: type[object]) -> None:
    await join(store, "w1", shard(0, 6))
    assert await way(store) == [W1]  # type: ignore[call-arg,misc]


async def test_of_very_many_late_ones_those_who_are_late_are_marked(store: Store) -> None:
    await join(store, "w1", shard(0, 6))
    # In hundreds, so a few hundred are enough to see that none is left out.
    late = [*MANY[:250], W1]
    assert await store.losses.mark(late, NOW + 1, NOW + 13, await turn(store)) == (W1,)
