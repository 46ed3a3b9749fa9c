import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from meshnet_common.protocol.messages import RouteAnswer
from meshnet_common.protocol.tickets import RouteTicket
from meshnet_tracker.head_search import HeadSearch, NoHeadError
from meshnet_tracker.planning.route_table import RouteTable
from meshnet_tracker.planning.snapshot import VariantKey
from meshnet_tracker.settings import TrackerSettings
from meshnet_tracker.store.errors import DatabaseUnavailableError
from meshnet_tracker.store.snapshots import MeshChanges, MeshNumbers
from meshnet_tracker.tries import ProxyPolicy
from tests.tracker.builders import NOW, heartbeat, preset, registration, shard
from tests.tracker.running import JoinedWorker, RunningTracker, running_tracker, until

QUICK = ProxyPolicy(connect_retries=1, connect_backoff_seconds=0.05, hold_seconds=1.0)
PATIENT = ProxyPolicy(connect_backoff_seconds=60.0, hold_seconds=60.0)


def waiting(tracker: RunningTracker) -> int:
    """How many requests wait for Layers of `tiny`."""
    return tracker.services.held.ahead(VariantKey("tiny", "bfloat16"), 1 << 62)


async def tracker_with(tmp_path: Path, policy: ProxyPolicy) -> AsyncIterator[RunningTracker]:
    settings = TrackerSettings(proxy=policy)
    async with running_tracker(tmp_path / "tracker.sqlite3", settings) as running:
        await running.store.add_preset(preset(), NOW)
        yield running


@pytest.fixture
async def tracker(tmp_path: Path) -> AsyncIterator[RunningTracker]:
    async for running in tracker_with(tmp_path, QUICK):
        yield running


@pytest.fixture
async def patient(tmp_path: Path) -> AsyncIterator[RunningTracker]:
    """A Tracker that looks again only when something has changed."""
    async for running in tracker_with(tmp_path, PATIENT):
        yield running


async def search_of(tracker: RunningTracker) -> HeadSearch:
    admissions = tracker.services.admissions
    model = await admissions.find_model("tiny")
    return HeadSearch(tracker.services, model, await admissions.admit())


async def whole(tracker: RunningTracker, worker_id: str, sessions: int = 0) -> JoinedWorker:
    """A Worker that serves the whole model at a place where nobody listens."""
    worker = await tracker.serve(worker_id, "http://127.0.0.1:1", shard(0, 6))
    busy = heartbeat(shard(0, 6), sessions=sessions)
    await tracker.post(f"{worker.where}/heartbeat", busy, worker.token)
    return worker


async def ticket(tracker: RunningTracker, route: RouteAnswer) -> RouteTicket:
    return await tracker.services.signer.verify(route.ticket)


def head_of(route: RouteAnswer) -> str:
    return route.hops[0].worker_id


async def test_a_lost_head_workers_session_goes_on_under_the_next(tracker: RunningTracker) -> None:
    await whole(tracker, "w1")
    await whole(tracker, "w2", sessions=9)
    search = await search_of(tracker)
    first = await search.next_route()
    await search.on_fault()
    second = await search.next_route()
    assert (head_of(first), head_of(second)) == ("w1", "w2")
    before, after = await ticket(tracker, first), await ticket(tracker, second)
    assert after.session_id == before.session_id
    assert after.incarnation > before.incarnation
    assert search.has_failed
    # It does not answer, so it is lost for others too.
    assert head_of(await (await search_of(tracker)).next_route()) == "w2"


async def test_one_that_leaves_is_not_asked_whether_it_lives(tracker: RunningTracker) -> None:
    await whole(tracker, "w1")
    await whole(tracker, "w2", sessions=9)
    search = await search_of(tracker)
    await search.next_route()
    search.on_left()
    assert head_of(await search.next_route()) == "w2"
    assert head_of(await (await search_of(tracker)).next_route()) == "w1"


async def test_after_a_refusal_the_next_head_worker_gets_a_session_of_its_own(
    tracker: RunningTracker,
) -> None:
    await whole(tracker, "w1")
    await whole(tracker, "w2", sessions=9)
    search = await search_of(tracker)
    first = await ticket(tracker, await search.next_route())
    search.on_refused()
    second = await ticket(tracker, await search.next_route())
    assert second.session_id != first.session_id
    assert (second.seed, second.admission_seq) == (first.seed, first.admission_seq)
    search.on_refused()
    with pytest.raises(NoHeadError, match="asked") as ended:
        await search.next_route()
    assert ended.value.missing == ()


async def test_one_that_is_only_not_ready_is_asked_again(tracker: RunningTracker) -> None:
    await whole(tracker, "w1")
    search = await search_of(tracker)
    for _ in range(1 + QUICK.connect_retries):
        assert head_of(await search.next_route()) == "w1"
        search.on_not_ready(is_promised=True)
    with pytest.raises(NoHeadError, match="asked"):
        await search.next_route()


async def test_one_whose_route_failed_is_asked_after_the_others_and_once_more(
    tracker: RunningTracker,
) -> None:
    await whole(tracker, "w1")
    await whole(tracker, "w2", sessions=9)
    search = await search_of(tracker)
    asked = []
    for _ in range(4):
        asked.append(await search.next_route())
        search.on_route_failed(is_unrouted=False)
    assert list(map(head_of, asked)) == ["w1", "w2", "w1", "w2"]
    tickets = [await ticket(tracker, route) for route in asked]
    assert [each.incarnation for each in tickets] == [1, 2, 3, 4]
    assert len({each.session_id for each in tickets}) == 1
    with pytest.raises(NoHeadError, match="asked"):
        await search.next_route()


async def test_who_gave_up_for_layers_that_were_missing_is_asked_again_when_they_are_back(
    tracker: RunningTracker,
) -> None:
    await tracker.serve("w1", "http://127.0.0.1:1", shard(0, 3))
    tail = await tracker.serve("w2", "http://127.0.0.1:1", shard(3, 6))
    search = await search_of(tracker)
    search.tries.policy = ProxyPolicy(connect_backoff_seconds=0.05, hold_seconds=10.0)
    for _ in range(2):
        assert head_of(await search.next_route()) == "w1"
        search.on_route_failed(is_unrouted=False)
    await tail.leave()
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        found = tasks.create_task(search.next_route())
        await until(lambda: waiting(tracker) == 1)
        await tracker.serve("w3", "http://127.0.0.1:1", shard(3, 6))
    assert [hop.worker_id for hop in found.result().hops] == ["w1", "w3"]


async def test_layers_that_a_head_worker_promises_are_waited_for_until_the_deadline(
    tracker: RunningTracker,
) -> None:
    head = await whole(tracker, "w1")
    search = await search_of(tracker)
    await search.next_route()
    search.on_not_ready(is_promised=True)
    assert (await head.leave()).status == 204
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(10):
        with pytest.raises(NoHeadError, match="0-5"):
            await search.next_route()
    assert asyncio.get_running_loop().time() - began >= QUICK.hold_seconds - 0.1


async def test_layers_that_nobody_can_load_are_not_waited_for_after_a_lost_route_either(
    tracker: RunningTracker,
) -> None:
    head = await whole(tracker, "w1")
    search = await search_of(tracker)
    await search.next_route()
    search.on_route_failed(is_unrouted=True)
    assert (await head.leave()).status == 204
    search.tries.policy = ProxyPolicy(connect_backoff_seconds=0.05)
    async with asyncio.timeout(5):
        with pytest.raises(NoHeadError, match="0-5"):
            await search.next_route()


async def test_layers_that_nobody_can_load_are_named_at_once(tracker: RunningTracker) -> None:
    with pytest.raises(NoHeadError, match="0-5") as ended:
        await (await search_of(tracker)).next_route()
    assert len(ended.value.missing) == 1
    assert tracker.services.rebalance.is_rung


async def test_a_wait_ends_as_soon_as_the_mesh_has_changed(patient: RunningTracker) -> None:
    joining = await patient.join(registration("w1", "http://127.0.0.1:1"))
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        search = await search_of(patient)
        found = tasks.create_task(search.next_route())
        await until(lambda: waiting(patient) == 1)
        await joining.beat(shard(0, 6))
    assert head_of(found.result()) == "w1"


async def test_those_that_wait_have_places_in_the_order_of_their_admission(
    patient: RunningTracker,
) -> None:
    joining = await patient.join(registration("w1", "http://127.0.0.1:1"))
    searches = [await search_of(patient) for _ in range(3)]
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        for search in reversed(searches):
            tasks.create_task(search.next_route())
        await until(lambda: waiting(patient) == 3)
        assert [search.ahead() for search in searches] == [0, 1, 2]
        await joining.beat(shard(0, 6))
    assert [search.ahead() for search in searches] == [0, 0, 0]


async def test_who_looks_again_keeps_its_place(
    patient: RunningTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    joining = await patient.join(registration("w1", "http://127.0.0.1:1"))
    first, second = [await search_of(patient) for _ in range(2)]
    looking, go_on = asyncio.Event(), asyncio.Event()
    read = patient.services.view.routes

    async def slowly() -> RouteTable:
        looking.set()
        await go_on.wait()
        return await read()

    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        found = tasks.create_task(first.next_route())
        await until(lambda: waiting(patient) == 1)
        monkeypatch.setattr(patient.services.view, "routes", slowly)
        await joining.beat(shard(0, 6))
        await looking.wait()
        assert second.ahead() == 1
        go_on.set()
        await found
        assert second.ahead() == 0


async def test_a_session_that_is_too_old_is_not_led_on(tracker: RunningTracker) -> None:
    await whole(tracker, "w1")
    search = await search_of(tracker)
    await search.next_route()
    search.on_left()
    tracker.clock.advance(tracker.services.settings.renewal_seconds + 1)
    with pytest.raises(NoHeadError, match="send the request again"):
        await search.next_route()


async def test_a_database_that_is_away_for_a_moment_costs_only_time(
    tracker: RunningTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await whole(tracker, "w1")
    search = await search_of(tracker)
    await search.next_route()
    read, tries = tracker.store.mesh.changes, 0

    async def is_away_twice(since: MeshNumbers) -> MeshChanges:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise DatabaseUnavailableError
        return await read(since)

    monkeypatch.setattr(tracker.store.mesh, "changes", is_away_twice)
    search.on_left()
    tracker.services.view.forget()
    assert head_of(await search.next_route()) == "w1"


async def test_a_database_that_stays_away_ends_the_search(
    tracker: RunningTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_away(_since: MeshNumbers) -> MeshChanges:
        raise DatabaseUnavailableError

    await whole(tracker, "w1")
    search = await search_of(tracker)
    await search.next_route()
    monkeypatch.setattr(tracker.store.mesh, "changes", is_away)
    search.on_left()
    tracker.services.view.forget()
    async with asyncio.timeout(10):
        with pytest.raises(NoHeadError, match="database"):
            await search.next_route()
