"""A Worker that knows several Trackers loses nothing when the one that it talks to is gone."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from meshnet_common.openai.errors import ApiError
from meshnet_common.protocol.messages import DirectiveKind
from meshnet_worker.tracker_client import TrackerClient, TrackerUnreachableError
from meshnet_worker.trackers import Trackers
from tests.common.builders import preset
from tests.worker.builders import directive
from tests.worker.conftest import ModelFolders
from tests.worker.engines import SharedEngine
from tests.worker.models import HIDDEN_SIZE
from tests.worker.several_trackers import Door, several_trackers
from tests.worker.small_tracker import SmallTracker
from tests.worker.test_tracker_client import CALLS, HEARTBEAT, OWN_CALLS, REGISTRATION, client_of
from tests.worker.test_tracker_link import AWAY, following
from tests.worker.waiting import SECONDS

pytestmark = pytest.mark.asyncio(loop_scope="session")

Call = Callable[[TrackerClient], Awaitable[object]]
RENEWAL: dict[str, Call] = {"renew": lambda client: client.renew("old", frozenset())}
EVERY_CALL = CALLS | OWN_CALLS | RENEWAL
PATIENCE_SECONDS = 0.05
DROP = DirectiveKind.DROP_SHARD

FAULTS: dict[str, Callable[[Door], None]] = {
    "killed": Door.kill,
    "frozen": Door.freeze,
    "its database is away": lambda door: door.refuse(503, "database_unavailable"),
    "its balancer finds none": lambda door: door.refuse(503),
    "broken": lambda door: door.refuse(500),
    "bad gateway": lambda door: door.refuse(502),
}


@asynccontextmanager
async def joined(count: int) -> AsyncIterator[tuple[TrackerClient, SmallTracker, list[Door]]]:
    """A client that has registered at the first of so many."""
    async with several_trackers(count, preset()) as (database, doors):
        client = TrackerClient(*(door.url for door in doors))
        try:
            await client.register(REGISTRATION)
            hurried(client)
            yield client, database, doors
        finally:
            await client.close()


def hurried(client: TrackerClient) -> None:
    """Let it wait for a silent Tracker for a moment only."""
    count = len(client.trackers.round())
    client.trackers.learn_terms(0.0, 3 * count * PATIENCE_SECONDS)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("call", EVERY_CALL.values(), ids=EVERY_CALL)
async def test_any_call_goes_to_the_next_tracker_at_once(
    call: Call, fault: Callable[[Door], None]
) -> None:
    async with asyncio.timeout(SECONDS), joined(2) as (client, _, (first, second)):
        fault(first)
        await call(client)
        assert len(second.calls) == 1
        assert client.trackers.present == second.url


@pytest.mark.parametrize("call", EVERY_CALL.values(), ids=EVERY_CALL)
async def test_a_tracker_that_no_longer_listens_is_left(call: Call) -> None:
    async with joined(2) as (client, _, (_, second)):
        client.trackers = Trackers(AWAY, second.url)
        await call(client)
        assert client.trackers.present == second.url


async def test_a_worker_stays_with_the_tracker_that_answered() -> None:
    async with joined(2) as (client, _, (first, second)):
        first.kill()
        await client.heartbeat(HEARTBEAT)
        first.recover()
        calls = len(first.calls)
        await client.heartbeat(HEARTBEAT)
        assert len(first.calls) == calls
        assert len(second.calls) == 2


async def test_trackers_are_tried_in_turn_until_one_answers() -> None:
    async with joined(3) as (client, database, (first, second, third)):
        first.kill()
        second.refuse(503, "database_unavailable")
        await client.heartbeat(HEARTBEAT)
        assert client.trackers.present == third.url
        first.recover()
        third.kill()
        await client.heartbeat(HEARTBEAT)
        assert client.trackers.present == first.url
        assert len(database.heartbeats) == 2


async def test_a_refusal_that_each_tracker_would_give_is_taken_from_the_first() -> None:
    async with joined(2) as (client, _, (first, second)):
        for status, code in ((503, "model_unavailable"), (404, None), (429, None)):
            first.refuse(status, code)
            with pytest.raises(ApiError) as caught:
                await client.route("tiny", "w0", None)
            assert caught.value.status == status
        assert second.calls == []
        assert client.trackers.present == first.url


async def test_where_all_have_failed_each_is_named_once() -> None:
    async with joined(2) as (client, _, (first, second)):
        first.kill()
        second.kill()
        with pytest.raises(TrackerUnreachableError, match="Check --tracker") as caught:
            await client.heartbeat(HEARTBEAT)
        assert all(str(caught.value).count(door.url) == 1 for door in (first, second))


async def test_where_all_have_failed_an_answer_tells_more_than_none() -> None:
    async with joined(2) as (client, _, (first, second)):
        first.refuse(503, "database_unavailable")
        second.kill()
        with pytest.raises(ApiError) as caught:
            await client.route("tiny", "w0", None)
        assert caught.value.body.code == "database_unavailable"


async def test_where_all_are_slow_the_last_has_the_time_that_it_needs() -> None:
    async with joined(2) as (client, database, (first, second)):
        for door in (first, second):
            door.slow_down(6 * PATIENCE_SECONDS)
        await client.heartbeat(HEARTBEAT)
        assert client.trackers.present == second.url
        assert database.heartbeats


async def test_a_poll_that_is_patient_is_not_taken_for_silence() -> None:
    async with joined(2) as (client, _, (first, second)):
        assert await client.directives(0, 4 * PATIENCE_SECONDS) == ()
        assert second.calls == []
        assert client.trackers.present == first.url


async def test_a_poll_that_ends_late_leads_nobody_back() -> None:
    async with joined(2) as (client, database, (first, second)):
        async with asyncio.TaskGroup() as tasks:
            polling = tasks.create_task(client.directives(0, SECONDS))
            await database.changes.until(lambda: any("directives" in path for path in first.calls))
            first.refuse(500)
            await client.heartbeat(HEARTBEAT)
            database.issue(directive(0, 1, epoch=4))
        assert [one.epoch for one in polling.result()] == [4]
        assert client.trackers.present == second.url


@pytest.mark.parametrize("fault", [Door.kill, Door.freeze], ids=["killed", "frozen"])
async def test_a_worker_beats_obeys_and_leaves_through_the_other_tracker(
    fault: Callable[[Door], None], shared_engine: SharedEngine, model_folders: ModelFolders
) -> None:
    model = preset(source=str(model_folders("llama")), hidden_size=HIDDEN_SIZE)
    async with several_trackers(2, model) as (database, (first, second)):
        database.heartbeat_seconds, database.directive_wait_seconds = 0.02, 0.1
        async with following(database, shared_engine) as worker:
            worker.client.trackers = Trackers(first.url, second.url)
            hurried(worker.client)
            await database.changes.until(lambda: any("directives" in path for path in first.calls))
            fault(first)
            beats = len(database.heartbeats)
            await database.changes.until(lambda: len(database.heartbeats) > beats + 1)
            database.issue(directive(1, 3, epoch=7), directive(1, 3, DROP, epoch=8))
            await database.changes.until(lambda: "ready" in database.reports_of("d8"))
            await worker.link.leave()
        assert database.reports_of("d7") == ["accepted", "ready"]
        assert database.departures == ["w0"]
        assert len(database.registrations) == 1


async def test_a_worker_joins_at_whichever_tracker_is_there() -> None:
    async with several_trackers(1) as (database, (only,)), client_of(AWAY) as client:
        client.trackers = Trackers(AWAY, only.url)
        await client.register(REGISTRATION)
        assert len(database.registrations) == 1
