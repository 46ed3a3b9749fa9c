import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from meshnet_tracker import planner_link
from meshnet_tracker.planner_link import PlannerError, PlannerLink
from meshnet_tracker.planning.snapshot import PlannerPolicy
from meshnet_tracker.store.errors import DatabaseUnavailableError
from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW, preset
from tests.tracker.running import until
from tests.tracker.store.meshes import join

PLAN = PlannerPolicy(), NOW


@pytest.fixture
async def link(store: Store, tmp_path: Path) -> AsyncIterator[PlannerLink]:
    await store.add_preset(preset(), NOW)
    await join(store, "w1")
    async with PlannerLink(str(tmp_path / "tracker.sqlite3")) as opened:
        yield opened


def process_of(link: PlannerLink) -> psutil.Process:
    assert link.process_id is not None
    return psutil.Process(link.process_id)


async def test_the_process_plans_on_the_database_again_and_again(
    store: Store, link: PlannerLink
) -> None:
    first = await link.plan(*PLAN)
    process = link.process_id
    assert [order.worker_id for order in first.directives] == ["w1"]
    await store.remove_preset("tiny")  # type: ignore[arg-type]
    assert (await link.plan(*PLAN)).directives == ()
    assert link.process_id == process != os.getpid()


async def test_a_killed_planner_fails_one_pass_and_is_started_again(link: PlannerLink) -> None:
    await link.plan(*PLAN)
    killed = process_of(link)
    killed.suspend()
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:

        async def fail() -> None:
            with pytest.raises(PlannerError, match="middle"):
                await link.plan(*PLAN)

        tasks.create_task(fail())
        await asyncio.sleep(0)
        killed.send_signal(signal.SIGKILL)
    assert len((await link.plan(*PLAN)).directives) == 1
    assert link.process_id != killed.pid


async def test_one_that_died_between_passes_is_not_noticed(link: PlannerLink) -> None:
    await link.plan(*PLAN)
    killed = process_of(link)
    killed.kill()
    await until(lambda: not killed.is_running() or killed.status() == psutil.STATUS_ZOMBIE)
    for _ in range(2):
        try:
            planned = await link.plan(*PLAN)
        except PlannerError:
            # Its end was not known yet; the next pass has a new process.
            continue
        assert len(planned.directives) == 1
        return
    pytest.fail("the planner was not started again")


async def test_a_pass_that_hangs_ends_with_its_process(
    link: PlannerLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    await link.plan(*PLAN)
    hanging = process_of(link)
    hanging.suspend()
    monkeypatch.setattr(planner_link, "PASS_SECONDS", 0.2)
    with pytest.raises(PlannerError):
        await link.plan(*PLAN)
    monkeypatch.undo()
    assert not hanging.is_running()
    assert len((await link.plan(*PLAN)).directives) == 1


async def test_a_pass_that_is_given_up_leaves_no_answer_behind(link: PlannerLink) -> None:
    await link.plan(*PLAN)
    async with asyncio.TaskGroup() as tasks:
        given_up = tasks.create_task(link.plan(*PLAN))
        await asyncio.sleep(0)
        given_up.cancel()
    assert len((await link.plan(PlannerPolicy(headroom_bytes=10**6), NOW)).directives) == 0


async def test_a_database_that_is_away_is_told_as_such(tmp_path: Path) -> None:
    async with PlannerLink(str(tmp_path / "empty.sqlite3")) as link:
        with pytest.raises(DatabaseUnavailableError):
            await link.plan(*PLAN)


async def test_the_process_ends_with_its_link(store: Store, tmp_path: Path) -> None:
    del store
    async with PlannerLink(str(tmp_path / "tracker.sqlite3")) as link:
        await link.plan(*PLAN)
        process = process_of(link)
    assert not process.is_running()


async def test_the_process_ends_when_its_tracker_is_killed(store: Store, tmp_path: Path) -> None:
    del store
    script = (
        "import asyncio, sys\n"
        "from meshnet_tracker.planner_link import PlannerLink\n"
        "from meshnet_tracker.planning.snapshot import PlannerPolicy\n"
        "async def main():\n"
        f"    async with PlannerLink({str(tmp_path / 'tracker.sqlite3')!r}) as link:\n"
        "        await link.plan(PlannerPolicy(), 0.0)\n"
        "        print(link.process_id, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    planner = psutil.Process(int(await parent.stdout.readline()))
    assert planner.is_running()
    parent.kill()
    await parent.communicate()
    await until(lambda: not planner.is_running() or planner.status() == psutil.STATUS_ZOMBIE)
