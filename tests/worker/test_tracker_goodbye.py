"""How a Worker leaves its Tracker; the rest of what ties them is in test_tracker_link.py."""

import asyncio

import pytest

from meshnet_worker.trackers import Trackers
from tests.worker.builders import directive
from tests.worker.small_tracker import small_tracker
from tests.worker.test_tracker_link import AWAY, following

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_worker_says_goodbye() -> None:
    async with small_tracker() as tracker, following(tracker) as worker:
        await worker.link.leave()
        assert tracker.departures == ["w0"]


async def test_a_goodbye_that_nobody_hears_is_no_fault() -> None:
    async with small_tracker() as tracker, following(tracker) as worker:
        worker.client.trackers = Trackers(AWAY)
        await worker.link.leave()


async def test_a_goodbye_is_said_once_and_nobody_registers_after_it() -> None:
    async with small_tracker() as tracker:
        tracker.heartbeat_seconds = 0.02
        async with following(tracker) as worker:
            await tracker.changes.until(lambda: tracker.heartbeats)
            for _ in range(2):
                await worker.link.leave()
            tracker.forget_workers()
            worker.link.hurry()
            beats = len(tracker.heartbeats)
            await asyncio.sleep(0.1)
            assert len(tracker.heartbeats) <= beats + 1
        assert tracker.departures == ["w0"]
        assert len(tracker.registrations) == 1


async def test_a_worker_that_leaves_says_so_and_obeys_no_more() -> None:
    async with small_tracker() as tracker:
        tracker.heartbeat_seconds = 0.02
        async with following(tracker) as worker:
            await tracker.changes.until(lambda: tracker.heartbeats)
            beats = len(tracker.heartbeats)
            await worker.link.say_that_it_leaves()
            assert len(tracker.heartbeats) > beats
            tracker.issue(directive(0, 2))
            await tracker.changes.until(lambda: tracker.heartbeats[-1].directive_epoch == 1)
        assert tracker.reports == []


async def test_a_tracker_that_is_away_does_not_keep_a_worker() -> None:
    async with small_tracker() as tracker, following(tracker) as worker:
        worker.client.trackers = Trackers(AWAY)
        await worker.link.say_that_it_leaves()
        assert tracker.departures == []
