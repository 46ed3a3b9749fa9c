from meshnet_common.protocol.messages import DirectiveReport, DirectiveState
from meshnet_tracker.records import DirectiveTally
from meshnet_tracker.store.migrate import head_revision
from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW, load, preset, registration, shard
from tests.tracker.store.meshes import beat, issue, join, lose, open_for, register, tell


async def fail(store: Store, worker_id: str, why: str, now: float) -> None:
    (order,) = await open_for(store, worker_id)
    report = DirectiveReport(state=DirectiveState.FAILED, reason=why)
    await tell(store, worker_id, order.id, report, now)


async def test_open_directives_are_told_until_they_are_closed(store: Store) -> None:
    await store.add_preset(preset(), NOW)
    for worker_id in ("w1", "w2"):
        await join(store, worker_id)
    await issue(store, load("w1", 0, 3), load("w2", 3, 6))
    opened = await store.operations.open_directives()
    assert [(d.worker_id, d.state, d.issued_at) for d in opened] == [
        ("w1", DirectiveState.ISSUED, NOW),
        ("w2", DirectiveState.ISSUED, NOW),
    ]
    await fail(store, "w1", "the disk is full", NOW + 5)
    assert [d.worker_id for d in await store.operations.open_directives()] == ["w2"]
    (closed,) = await store.operations.closed_directives(NOW, NOW + 10)
    assert (closed.worker_id, closed.state, closed.detail, closed.updated_at) == (
        "w1",
        DirectiveState.FAILED,
        "the disk is full",
        NOW + 5,
    )


async def test_open_directives_are_counted_by_what_they_are_for(store: Store) -> None:
    await store.add_preset(preset(), NOW)
    for worker_id in ("w1", "w2"):
        await join(store, worker_id)
    await issue(store, load("w1", 0, 3), now=NOW)
    await issue(store, load("w2", 3, 6), now=NOW + 5)
    assert await store.operations.tally_directives() == (
        DirectiveTally("LOAD_SHARD", "gap", "issued", 2, NOW),
    )


async def test_each_closed_directive_is_in_one_stretch_of_time_only(store: Store) -> None:
    await store.add_preset(preset(), NOW)
    await join(store, "w1")
    await issue(store, load("w1", 0, 3))
    await fail(store, "w1", "", NOW + 5)
    ends = (NOW, NOW + 5, NOW + 10)
    found = [
        len(await store.operations.closed_directives(after, until))
        for after, until in ((ends[0], ends[1]), (ends[1], ends[2]))
    ]
    assert found == [1, 0]


async def test_if_there_are_too_many_the_newest_are_told(store: Store) -> None:
    await store.add_preset(preset(), NOW)
    for worker_id in ("w1", "w2"):
        await join(store, worker_id)
    await issue(store, load("w1", 0, 3), load("w2", 3, 6))
    for worker_id in ("w1", "w2"):
        await fail(store, worker_id, "", NOW + 1)
    (newest,) = await store.operations.closed_directives(NOW, NOW + 2, limit=1)
    assert newest.worker_id == "w2"


async def test_workers_are_counted_by_their_state(store: Store) -> None:
    for number in range(3):
        await join(store, f"live{number}")
    await join(store, "leaving")
    await beat(store, "leaving", shard(0, 1), leaving=True)
    await register(store, registration("new"), NOW)
    await join(store, "late", now=NOW - 100)
    await lose(store, NOW - 50, NOW)
    assert await store.operations.worker_states() == {
        "live": 3,
        "leaving": 1,
        "joining": 1,
        "lost": 1,
    }


async def test_the_schemas_revision_is_told(store: Store) -> None:
    assert await store.operations.schema_revision() == head_revision()
