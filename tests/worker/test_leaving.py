import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.bodies import CloseBody
from meshnet_worker import leaving
from meshnet_worker.handing_over import HandingOver
from meshnet_worker.hop_room import HopRoom
from meshnet_worker.hops import Hops
from meshnet_worker.leaving import Leaving, LeavingRoom
from meshnet_worker.trackers import Trackers
from tests.worker.hop_running import Running
from tests.worker.small_tracker import SmallTracker, small_tracker
from tests.worker.test_tracker_link import AWAY, Worker
from tests.worker.waiting import SECONDS, Changes, ending_tasks

GRACE_SECONDS = 60.0
OWN_URL = "http://127.0.0.1:7000"
OTHER_URL = "http://127.0.0.1:7001"


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "OFFER_SECONDS", 0.01)
    monkeypatch.setattr(leaving, "LOOK_SECONDS", 0.01)


class OfferingHops(Hops):
    """Hops that count how often their Sessions were offered to others."""

    def __init__(self, room: HopRoom) -> None:
        super().__init__(room)
        self.offers = 0
        self.offered = Changes()

    def tell_that_it_drains(self) -> None:
        super().tell_that_it_drains()
        self.offers += 1
        self.offered.tell()


class Leaver:
    """A Worker with a Session, perhaps Head Worker of other answers, that is to leave."""

    def __init__(self, tracker: SmallTracker, *answers: str, worker_id: str = "w1") -> None:
        self.answers = list(answers)
        self.moves = 0
        """How often its answers were to go on elsewhere."""
        self.hurry = asyncio.Event()
        self.running = Running(worker_id)
        self.recording = self.running.recording
        self.hops = OfferingHops(self.recording.room)
        self.worker = Worker(tracker)
        self.worker.shards = self.recording.shards
        room = LeavingRoom(
            shards=self.recording.shards,
            sessions=self.recording.sessions,
            hops=self.hops,
            link=self.worker.link,
            handing_over=HandingOver(
                self.recording.shards, self.answers, self._move, self._find_heads, OWN_URL
            ),
        )
        self._leaving = Leaving(room)

    async def leave(self, grace_seconds: float = GRACE_SECONDS) -> None:
        await self._leaving.leave(grace_seconds, self.hurry)

    def finish(self) -> None:
        """Let everything here come to its end."""
        self.hops.close(CloseBody(session_id="s1", epoch=(1, 0)))
        self.answers.clear()

    async def until_offered(self) -> None:
        """Wait until a round of offers has begun and is through."""
        enough = self.hops.offers + 2
        await self.hops.offered.until(lambda: self.hops.offers >= enough)

    @property
    def codes(self) -> list[str]:
        """The faults that the Head Workers of its Sessions have heard of."""
        return [fault.code for fault in self.running.faults()]

    def _move(self) -> None:
        self.moves += 1

    async def _find_heads(self, name: str) -> tuple[str, ...]:
        return await self.worker.client.head_workers(name)


@asynccontextmanager
async def joined(
    tracker: SmallTracker, *answers: str, worker_id: str = "w1"
) -> AsyncIterator[Leaver]:
    leaver = Leaver(tracker, *answers, worker_id=worker_id)
    await leaver.worker.link.join()
    try:
        async with asyncio.timeout(SECONDS):
            yield leaver
    finally:
        await leaver.worker.client.close()


@asynccontextmanager
async def draining(tracker: SmallTracker, *answers: str) -> AsyncIterator[Leaver]:
    """A Worker in the middle of its leaving; the block must let it end."""
    async with joined(tracker, *answers) as leaver, ending_tasks() as tasks:
        gone = tasks.create_task(leaver.leave())
        await leaver.until_offered()
        yield leaver
        await gone


async def test_a_worker_with_nothing_to_do_says_goodbye_at_once() -> None:
    async with small_tracker() as tracker, joined(tracker) as leaver:
        leaver.finish()
        await leaver.leave()
        assert tracker.departures == ["w0"]
        assert (tracker.heartbeats, leaver.codes, leaver.moves) == ([], [], 0)


async def test_a_worker_that_leaves_takes_nothing_new_and_goes_with_its_last_session() -> None:
    async with small_tracker() as tracker:
        async with draining(tracker) as leaver:
            assert leaver.recording.shards.leaving
            assert set(leaver.codes) == {"draining"}
            assert (leaver.running.open_ids, tracker.departures) == (["s1"], [])
            leaver.finish()
        assert tracker.departures == ["w0"]


async def test_the_tracker_hears_it_before_the_head_workers_ask_it_for_other_routes() -> None:
    async with small_tracker() as tracker, joined(tracker) as leaver, ending_tasks() as tasks:
        gone = tasks.create_task(leaver.leave())
        await tracker.changes.until(lambda: tracker.heartbeats)
        assert leaver.codes == []
        await leaver.until_offered()
        assert leaver.codes
        leaver.finish()
        await gone


async def test_answers_go_on_at_another_head_worker_as_soon_as_there_is_one() -> None:
    async with small_tracker() as tracker:
        tracker.head_workers = {"tiny": [OWN_URL]}
        async with draining(tracker, "s9") as leaver:
            assert leaver.moves == 0
            tracker.head_workers = {"tiny": [OWN_URL, OTHER_URL]}
            await leaver.until_offered()
            assert leaver.moves
            leaver.finish()


async def test_answers_that_nobody_can_take_over_are_finished() -> None:
    async with small_tracker() as tracker:
        async with draining(tracker, "s9") as leaver:
            leaver.hops.close(CloseBody(session_id="s1", epoch=(1, 0)))
            await leaver.until_offered()
            assert (leaver.moves, tracker.departures) == (0, [])
            leaver.finish()
        assert tracker.departures == ["w0"]


@pytest.mark.parametrize("grace_seconds", [0.0, 0.05])
async def test_who_is_left_when_the_grace_period_is_over_is_told(grace_seconds: float) -> None:
    async with small_tracker() as tracker, joined(tracker, "s9") as leaver:
        await leaver.leave(grace_seconds)
        assert leaver.codes[-1] == "draining"
        assert leaver.running.open_ids == []
        assert leaver.moves
        assert tracker.departures == ["w0"]


async def test_answers_that_are_left_end_by_moving_not_by_a_fault_of_their_own_hop() -> None:
    async with small_tracker() as tracker, joined(tracker, "s1", worker_id="w0") as leaver:
        await leaver.leave(grace_seconds=0.0)
        assert (leaver.codes, leaver.running.open_ids) == ([], ["s1"])
        assert leaver.moves


async def test_a_hurry_ends_the_grace_period() -> None:
    async with small_tracker() as tracker, draining(tracker) as leaver:
        leaver.hurry.set()
    assert leaver.running.open_ids == []


async def test_sessions_are_offered_too_while_the_tracker_is_away() -> None:
    async with small_tracker() as tracker, joined(tracker, "s9") as leaver, ending_tasks() as tasks:
        leaver.worker.client.trackers = Trackers(AWAY)
        gone = tasks.create_task(leaver.leave())
        await leaver.until_offered()
        assert (leaver.codes[0], leaver.moves) == ("draining", 0)
        leaver.finish()
        await gone


async def test_a_session_whose_head_is_lost_holds_nobody_up() -> None:
    async with small_tracker() as tracker, joined(tracker) as leaver:
        leaver.hops.on_peer_lost(WorkerId("w0"), "refused")
        await leaver.leave()
    assert leaver.hops.offers == 0
