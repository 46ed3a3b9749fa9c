"""Two Trackers that write at the same time, on every kind of database."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from sqlalchemy import select, text, update

from meshnet_common.ids import WorkerId
from meshnet_tracker.records import Beat, Joining, Term
from meshnet_tracker.store.errors import (
    DatabaseUnavailableError,
    StaleSnapshotError,
    StaleTermError,
)
from meshnet_tracker.store.schema import counters
from meshnet_tracker.store.store import Store
from tests.tracker.builders import (
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
from tests.tracker.databases import bare_postgres
from tests.tracker.store.meshes import issue, join, open_for

EACH = 25


async def at_once(*calls: Callable[[], Awaitable[object]]) -> None:
    async def call(one: Callable[[], Awaitable[object]]) -> None:
        await one()

    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        for each in calls:
            tasks.create_task(call(each))


async def test_admission_numbers_are_given_once_and_without_gaps(
    store: Store, other: Store
) -> None:
    numbers: list[int] = []

    async def take(source: Store) -> None:
        numbers.append(await source.next_admission_seq())

    await at_once(*[lambda s=s: take(s) for s in [store, other] * EACH])
    assert sorted(numbers) == list(range(1, 2 * EACH + 1))


async def test_no_two_renewals_get_the_same_incarnation(store: Store, other: Store) -> None:
    taken: list[int | None] = []

    async def take(source: Store) -> None:
        taken.append(await source.next_incarnation("s1", 1, NOW))

    await at_once(*[lambda s=s: take(s) for s in [store, other] * EACH])
    assert sorted(number or 0 for number in taken) == list(range(2, 2 * EACH + 2))


async def test_a_head_is_moved_for_good_whoever_renews_meanwhile(
    store: Store, other: Store
) -> None:
    renewed: list[int | None] = []
    moved: list[int] = []

    async def renew() -> None:
        renewed.append(await store.next_incarnation("s1", 1, NOW))

    async def move() -> None:
        moved.append(await other.move_head("s1", 1, NOW))

    await at_once(*[renew] * EACH, move, *[renew] * EACH)
    assert all(number is None or number < moved[0] for number in renewed)
    assert (await store.renewals("s1")).head_since == moved[0]


async def test_who_decides_about_the_mesh_is_alone(store: Store, other: Store) -> None:
    async def read_then_write(source: Store) -> None:
        query = select(counters.c.value).where(counters.c.name == "admission_seq")
        async with source._transactions.write() as connection:
            value: int = (await connection.execute(query)).scalar_one()
            await asyncio.sleep(0)
            changed = update(counters).where(counters.c.name == "admission_seq")
            await connection.execute(changed.values(value=value + 1))

    await at_once(*[lambda s=s: read_then_write(s) for s in [store, other] * EACH])
    assert await store.next_admission_seq() == 2 * EACH + 1


async def test_a_reader_sees_one_instant(store: Store, other: Store) -> None:
    query = select(counters.c.value).where(counters.c.name == "admission_seq")
    async with store._transactions.read() as connection:
        before = (await connection.execute(query)).scalar_one()
        await other.next_admission_seq()
        assert (await connection.execute(query)).scalar_one() == before
    assert await store.next_admission_seq() == before + 2


async def test_of_two_drops_of_the_last_two_copies_one_is_issued(
    store: Store, other: Store
) -> None:
    await store.add_preset(preset(), NOW)
    for name in ("w1", "w2"):
        await join(store, name, shard(0, 6))
    term = await store.leadership.take("planner")
    assert term is not None
    plans = (await store.load_snapshot()).issued_plans
    outcomes: list[str] = []

    async def try_to_drop(source: Store, worker_id: str, held: Term) -> None:
        try:
            await source.issue_directives([drop(worker_id, 0, 6)], plans, 600, NOW, held)
            outcomes.append("issued")
        except StaleSnapshotError:
            outcomes.append("stale")

    await at_once(lambda: try_to_drop(store, "w1", term), lambda: try_to_drop(other, "w2", term))
    assert sorted(outcomes) == ["issued", "stale"]
    assert len([*await open_for(store, "w1"), *await open_for(store, "w2")]) == 1


async def test_two_planners_take_turns_and_no_epoch_is_given_twice(
    store: Store, other: Store
) -> None:
    await store.add_preset(preset(), NOW)
    for number in range(EACH):
        await join(store, f"w{number}")
    issued: list[str] = []

    async def plan(source: Store, holder: str) -> None:
        for number in range(EACH):
            # A lease without length: everybody takes over from everybody.
            term = await source.leadership.take(holder, lease_seconds=0.0)
            plans = (await source.load_snapshot()).issued_plans
            order = load(f"w{number}", 0, 3)
            try:
                assert term is not None
                done = await source.issue_directives([order], plans, 600, NOW, term)
            except (StaleTermError, StaleSnapshotError):
                continue
            issued.extend(directive.worker_id for directive in done)

    await at_once(lambda: plan(store, "one"), lambda: plan(other, "two"))
    assert len(issued) == len(set(issued)) > 0
    found = [o for n in range(EACH) for o in await open_for(store, f"w{n}")]
    epochs = [order.epoch for order in found]
    assert sorted(epochs) == list(range(1, len(issued) + 1))


async def test_a_worker_that_two_trackers_register_is_there_once(
    store: Store, other: Store
) -> None:
    await at_once(lambda: join(store, "w1", shard(0, 3)), lambda: join(other, "w1", shard(0, 3)))
    (worker,) = await store.workers()
    assert worker.worker_id == WorkerId("w1")
    assert await issue(other, load("w1", 3, 6)) == ("w1",)


async def test_a_writer_sees_what_is_now_whatever_the_servers_default_is() -> None:
    async with bare_postgres() as url:
        first = Store.open(url)
        async with first._transactions.write() as connection:
            name = (await connection.execute(text("SELECT current_database()"))).scalar_one()
            wish = f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = 'serializable'"
            await connection.execute(text(wish))
        await first.close()
        store = Store.open(url)
        async with store._transactions.write() as connection:
            level = (await connection.execute(text("SHOW transaction_isolation"))).scalar_one()
        await store.close()
    assert level == "read committed"


async def test_whatever_runs_beside_what_nobody_waits_in_a_circle() -> None:
    """All that writes, at once, over the same rows: PostgreSQL counts the circles it had to cut."""
    async with bare_postgres() as url:
        stores = Store.open(url), Store.open(url)
        await stores[0].migrate()
        await stores[0].add_preset(preset(), NOW)
        names = [f"w{number:02}" for number in range(30)]
        orders = names, names[::-1]

        async def everything(store: Store, order: Sequence[str], turn: int) -> None:
            joining = [Joining(registration(name), TOKEN_SHA256) for name in order]
            beats = [Beat(WorkerId(name), TOKEN_SHA256, heartbeat(shard(0, 6))) for name in order]
            ways: list[Callable[[], Awaitable[object]]] = [
                lambda: store.callers.register(joining, NOW + turn),
                lambda: store.heartbeats.record(beats, NOW + 600, NOW + turn),
                lambda: store.losses.note_alive([WorkerId(name) for name in order], NOW + turn),
                lambda: store.observe_epoch(WorkerId(order[0]), 10 * turn),
                lambda: store.pins.remove(WorkerId(order[0])),
                lambda: store.demand.add({MODEL: 1}, NOW + turn),
                lambda: store.sweep_incarnations(NOW + turn),
                lambda: store.next_incarnation(order[0], turn, NOW),
                store.next_admission_seq,
                store.operations.tell,
                lambda: plan(store, order),
            ]
            for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
                with suppress(StaleTermError, StaleSnapshotError, DatabaseUnavailableError):
                    await way()

        async def plan(store: Store, order: Sequence[str]) -> None:
            term = await store.leadership.take("one", lease_seconds=0.0)
            assert term is not None
            plans = (await store.load_snapshot()).issued_plans
            planned = [load(name, 0, 3) for name in order]
            await store.issue_directives(planned, plans, 600, NOW, term)
            await store.expire_directives(NOW + 700, term)
            await store.leadership.hand_over(term)

        both = list(zip(stores, orders, strict=True))
        await at_once(
            *[lambda s=s, o=o, n=n: everything(s, o, n) for n in range(3) for s, o in both]
        )
        query = text("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        for store in stores:
            # What its sessions have counted is there for certain once they have ended.
            await store.close()
        counting = Store.open(url)
        async with counting._transactions.read() as connection:
            deadlocks = (await connection.execute(query)).scalar_one()
        await counting.close()
    assert deadlocks == 0
