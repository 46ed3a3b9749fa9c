import asyncio
import time

import pytest

from meshnet_common.ids import WorkerId
from meshnet_tracker.probing import (
    DOUBT_SECONDS,
    MOST_SECONDS_LATE,
    PROBE_SECONDS,
    WorkerProbes,
)
from meshnet_tracker.records import WorkerPlace
from tests.tracker.builders import NOW
from tests.tracker.health import (
    Condition,
    FakeWorker,
    fake_worker,
    is_frozen,
    is_overdue,
    is_well,
    never_ends_its_answer,
    points_elsewhere,
    sends_endless_headers,
)
from tests.tracker.running import until


def place(worker: FakeWorker, name: str = "w1") -> WorkerPlace:
    return WorkerPlace(WorkerId(name), f"{worker.url}/", NOW)


async def test_a_worker_that_is_well_answers() -> None:
    async with fake_worker(is_well) as worker:
        assert await WorkerProbes().answers(place(worker))


@pytest.mark.parametrize("condition", [is_overdue, points_elsewhere, sends_endless_headers])
async def test_any_other_answer_is_none(condition: Condition) -> None:
    async with fake_worker(condition) as worker:
        assert not await WorkerProbes().answers(place(worker))
        assert worker.asked == 1


async def test_nothing_is_waited_for_longer_than_a_second_or_so() -> None:
    async with fake_worker(is_frozen) as worker, asyncio.timeout(10):
        assert not await WorkerProbes().answers(place(worker))


async def test_where_nobody_listens_nobody_answers() -> None:
    async with fake_worker(is_well) as worker:
        gone = place(worker)
    assert not await WorkerProbes().answers(gone)
    assert not await WorkerProbes().answers(WorkerPlace(WorkerId("w1"), "http://[junk", NOW))


async def test_no_more_of_an_answer_is_read_than_its_status() -> None:
    async with asyncio.timeout(5), fake_worker(never_ends_its_answer) as worker:
        assert await WorkerProbes().answers(place(worker))


async def test_questions_at_once_about_one_worker_share_a_probe() -> None:
    probes = WorkerProbes()
    async with fake_worker(is_frozen) as worker, asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(probes.answers(place(worker))) for _ in range(5)]
        await until(lambda: worker.asked == 1)
        worker.go_on.set()
    assert [each.result() for each in asked] == [True] * 5
    assert worker.asked == 1


async def test_a_later_question_is_asked_anew() -> None:
    probes = WorkerProbes()
    async with fake_worker(is_well) as worker:
        for _ in range(2):
            assert await probes.answers(place(worker))
        worker.condition = is_overdue
        assert not await probes.answers(place(worker))
        assert worker.asked == 3


async def test_who_asks_on_goes_on_when_the_first_one_gives_up() -> None:
    probes = WorkerProbes()
    async with fake_worker(is_frozen) as worker, asyncio.TaskGroup() as tasks:
        first = tasks.create_task(probes.answers(place(worker)))
        await until(lambda: worker.asked == 1)
        second = tasks.create_task(probes.answers(place(worker)))
        await asyncio.sleep(0)
        worker.condition = is_well
        first.cancel()
        assert await second
    assert worker.asked == 2


async def test_several_workers_are_asked_at_once() -> None:
    async with (
        fake_worker(is_overdue) as overdue,
        fake_worker(is_frozen) as frozen,
        asyncio.TaskGroup() as tasks,
    ):
        places = [place(overdue, "overdue"), *(place(frozen, f"frozen {n}") for n in range(4))]
        silent = tasks.create_task(WorkerProbes().silent(places))
        await until(lambda: frozen.asked == 4)
        frozen.go_on.set()
    assert silent.result() == tuple(places[:1])


async def test_a_doubted_worker_counts_again_once_it_answers() -> None:
    probes = WorkerProbes()
    async with fake_worker(is_overdue) as worker:
        assert await probes.reaches(WorkerId("w1"), NOW)
        probes.doubt(place(worker), NOW)
        assert not await probes.reaches(WorkerId("w1"), NOW)
        worker.condition = is_well
        assert await probes.reaches(WorkerId("w1"), NOW)
        asked = worker.asked
        assert await probes.reaches(WorkerId("w1"), NOW)
        assert worker.asked == asked
        probes.doubt(place(worker), NOW)
        probes.trust(WorkerId("w1"))
        assert await probes.reaches(WorkerId("w1"), NOW)
        assert worker.asked == asked


async def test_heartbeats_alone_count_again_after_a_while() -> None:
    probes = WorkerProbes()
    async with fake_worker(is_overdue) as worker:
        probes.doubt(place(worker), NOW)
        for seconds, counts in ((DOUBT_SECONDS - 1, False), (DOUBT_SECONDS, True), (0, True)):
            assert await probes.reaches(WorkerId("w1"), NOW + seconds) is counts
        assert worker.asked == 1


def block_everything(seconds: float) -> None:
    time.sleep(seconds)


async def test_the_trackers_own_pause_is_not_held_against_a_worker() -> None:
    async with fake_worker(is_frozen) as worker, asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(WorkerProbes().answers(place(worker)))
        await until(lambda: worker.asked == 1)
        worker.condition = is_well
        block_everything(PROBE_SECONDS + MOST_SECONDS_LATE)
        assert await asked
    assert worker.asked == 2
