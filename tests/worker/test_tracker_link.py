import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from meshnet_common.edge.clock import ManualClock
from meshnet_common.openai.errors import ApiError, ErrorBody
from meshnet_common.protocol.messages import (
    Capabilities,
    Directive,
    DirectiveKind,
    Heartbeat,
    PeerAddress,
    RegisterWorker,
    ShardState,
)
from meshnet_common.shard_range import ShardRange
from meshnet_worker import tracker_link
from meshnet_worker.engine_supervisor import EngineSlot
from meshnet_worker.keeper import ShardKeeper
from meshnet_worker.kv_budget import KvBudget
from meshnet_worker.sessions import SessionTable
from meshnet_worker.shards import Loading, ShardTable
from meshnet_worker.tracker_client import (
    TrackerClient,
    TrackerUnreachableError,
    WorkerTooSmallError,
)
from meshnet_worker.tracker_link import TrackerClock, TrackerLink, Vitals
from meshnet_worker.trackers import Trackers
from tests.common.builders import NOW, preset
from tests.worker.builders import LEASE_SECONDS, directive, local_weights
from tests.worker.conftest import ModelFolders
from tests.worker.engines import SharedEngine
from tests.worker.models import HIDDEN_SIZE
from tests.worker.small_tracker import SmallTracker, small_tracker
from tests.worker.waiting import SECONDS, ending_tasks

pytestmark = pytest.mark.asyncio(loop_scope="session")

AWAY = "http://127.0.0.1:1"


class Worker:
    """A Worker as far as its Tracker sees it, with Shards on the shared engine."""

    def __init__(self, tracker: SmallTracker, shared: SharedEngine | None = None) -> None:
        self.client = TrackerClient(tracker.url)
        self.shards = ShardTable()
        self.clock = TrackerClock(ManualClock(NOW - 100))
        slot = EngineSlot()
        if shared is not None:
            self.shards._numbers = next(shared.numbers)
            slot.put(shared.engine)
        sessions, kv = SessionTable(LEASE_SECONDS), KvBudget(100_000)
        keeper = ShardKeeper(self.shards, sessions, kv, slot, local_weights())
        self.asked: list[PeerAddress] = []
        vitals = Vitals(self._registration, self._heartbeat, self.asked.extend)
        self.link = TrackerLink(self.client, keeper, vitals, self.clock)

    def _registration(self) -> RegisterWorker:
        return RegisterWorker(
            worker_id="w0",
            url="http://127.0.0.1:7000",
            version="0.1.0",
            capabilities=Capabilities(
                vram_bytes=100_000,
                quantizations=("float32",),
                benchmark_tokens_per_sec=1.0,
                benchmark_model="layer",
                device="CPU",
            ),
        )

    def _heartbeat(self, epoch: int) -> Heartbeat:
        return Heartbeat(
            shards=self.shards.reports(), sessions=0, kv_bytes_free=5, directive_epoch=epoch
        )


@asynccontextmanager
async def following(
    tracker: SmallTracker, shared: SharedEngine | None = None
) -> AsyncIterator[Worker]:
    """A Worker that has joined and runs both of its loops until the block ends."""
    worker = Worker(tracker, shared)
    try:
        async with asyncio.timeout(SECONDS), ending_tasks() as tasks:
            await worker.link.join()
            tasks.create_task(worker.link.beat())
            tasks.create_task(worker.link.follow(tasks))
            yield worker
    finally:
        await worker.client.close()


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_link, "RETRY_SECONDS", 0.01)


async def test_a_worker_joins_and_beats() -> None:
    async with small_tracker() as tracker, following(tracker) as worker:
        await tracker.changes.until(lambda: tracker.heartbeats)
        assert [body.worker_id for body in tracker.registrations] == ["w0"]
        assert tracker.heartbeats[0].directive_epoch == 0
        worker.link.hurry()
        await tracker.changes.until(lambda: len(tracker.heartbeats) == 2)
        assert worker.clock.now() == NOW


async def test_a_worker_hears_whom_to_measure() -> None:
    peer = PeerAddress(worker_id="w9", url="http://there:1")
    async with small_tracker() as tracker:
        tracker.measure = (peer,)
        async with following(tracker) as worker:
            await tracker.changes.until(lambda: tracker.heartbeats)
            worker.link.hurry()
            await tracker.changes.until(lambda: len(tracker.heartbeats) == 2)
            assert worker.asked == [peer]


async def test_the_trackers_clock_is_followed_as_time_goes_by() -> None:
    own = ManualClock(50.0)
    clock = TrackerClock(own)
    assert clock.now() == 50.0
    clock.correct(NOW)
    own.advance(3)
    assert clock.now() == NOW + 3


async def test_a_tracker_that_is_late_is_waited_for() -> None:
    async with small_tracker() as tracker:
        worker = Worker(tracker)
        worker.client.trackers = Trackers(AWAY)
        async with ending_tasks() as tasks:
            joining = tasks.create_task(worker.link.join())
            await asyncio.sleep(0.03)
            worker.client.trackers = Trackers(tracker.url)
            async with asyncio.timeout(SECONDS):
                await joining
        await worker.client.close()
        assert len(tracker.registrations) == 1


async def test_a_tracker_that_never_comes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_link, "FIRST_CONTACT_SECONDS", 0.02)
    async with small_tracker() as tracker:
        worker = Worker(tracker)
        worker.client.trackers = Trackers(AWAY)
        with pytest.raises(TrackerUnreachableError):
            await worker.link.join()
        await worker.client.close()


async def test_a_worker_that_is_too_small_does_not_try_again() -> None:
    async with small_tracker() as tracker:
        body = ErrorBody("1 of 2 bytes", "invalid_request_error", None, "insufficient_memory")
        tracker.refusal = ApiError(422, body)
        worker = Worker(tracker)
        with pytest.raises(WorkerTooSmallError, match="1 of 2 bytes"):
            await worker.link.join()
        await worker.client.close()


async def test_a_worker_that_was_forgotten_registers_again() -> None:
    async with small_tracker() as tracker:
        tracker.heartbeat_seconds = 0.02
        async with following(tracker):
            await tracker.changes.until(lambda: tracker.heartbeats)
            tracker.forget_workers()
            await tracker.changes.until(lambda: len(tracker.registrations) == 2)
            beats = len(tracker.heartbeats)
            await tracker.changes.until(lambda: len(tracker.heartbeats) > beats)


async def test_a_tracker_that_was_away_is_followed_again() -> None:
    async with small_tracker(preset()) as tracker:
        tracker.heartbeat_seconds = 0.02
        async with following(tracker) as worker:
            await tracker.changes.until(lambda: tracker.heartbeats)
            worker.client.trackers = Trackers(AWAY)
            await asyncio.sleep(0.05)
            worker.client.trackers = Trackers(tracker.url)
            beats = len(tracker.heartbeats)
            await tracker.changes.until(lambda: len(tracker.heartbeats) > beats)


async def test_heartbeats_hurry_when_told_to() -> None:
    async with small_tracker() as tracker, following(tracker) as worker:
        await tracker.changes.until(lambda: len(tracker.heartbeats) == 1)
        worker.link.hurry()
        await tracker.changes.until(lambda: len(tracker.heartbeats) == 2)


async def test_heartbeats_come_more_often_while_layers_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracker_link, "LOADING_BEAT_SECONDS", 0.01)
    async with small_tracker() as tracker, following(tracker) as worker:
        await tracker.changes.until(lambda: len(tracker.heartbeats) == 1)
        model = preset()
        shard = worker.shards.add(model, model.variants[0], "folder")
        shard.loading = Loading(ShardRange(0, 2), 1, 9)
        worker.link.hurry()
        await tracker.changes.until(lambda: len(tracker.heartbeats) >= 4)
        assert tracker.heartbeats[-1].shards[0].state is ShardState.LOADING


async def test_a_directive_is_accepted_carried_out_and_reported(
    shared_engine: SharedEngine, model_folders: ModelFolders
) -> None:
    model = preset(source=str(model_folders("llama")), hidden_size=HIDDEN_SIZE)
    async with small_tracker(model) as tracker, following(tracker, shared_engine) as worker:
        tracker.issue(directive(1, 3, epoch=7))
        await tracker.changes.until(lambda: len(tracker.reports_of("d7")) == 2)
        assert tracker.reports_of("d7") == ["accepted", "ready"]
        # The Tracker has seen the Shard before it hears that the directive is done.
        (report,) = tracker.heartbeats[-1].shards
        assert (report.state, report.shard_range) == (ShardState.READY, ShardRange(1, 3))
        assert tracker.heartbeats[-1].directive_epoch == 7
        tracker.issue(directive(1, 3, DirectiveKind.DROP_SHARD, epoch=8))
        await tracker.changes.until(lambda: "ready" in tracker.reports_of("d8"))
        assert list(worker.shards) == []


FAILING = [
    pytest.param(directive(0, 1, kind="POLISH_SHARD"), "POLISH_SHARD", id="an unknown kind"),
    pytest.param(directive(1, 2, quantization="nf4"), "no such Variant", id="an unknown Variant"),
    pytest.param(directive(1, 2), "no folder", id="a model that is not there"),
]


@pytest.mark.parametrize(("told", "reason"), FAILING)
async def test_a_directive_that_fails_is_reported_with_its_reason(
    told: Directive, reason: str, shared_engine: SharedEngine
) -> None:
    model = preset(source="/nowhere/at/all", hidden_size=HIDDEN_SIZE)
    async with small_tracker(model) as tracker, following(tracker, shared_engine):
        tracker.issue(told)
        await tracker.changes.until(lambda: len(tracker.reports) == 2)
        assert tracker.reports_of("d1") == ["accepted", "failed"]
        assert reason in tracker.reports[-1][1].reason


async def test_a_directive_for_a_model_that_the_tracker_lacks_is_reported(
    shared_engine: SharedEngine,
) -> None:
    async with small_tracker() as tracker, following(tracker, shared_engine):
        tracker.issue(directive(1, 2))
        await tracker.changes.until(lambda: len(tracker.reports) == 2)
        assert tracker.reports_of("d1") == ["accepted", "failed"]


async def test_a_fault_of_ours_in_a_directive_is_reported_and_ends_nothing(
    shared_engine: SharedEngine, model_folders: ModelFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def faulty(*_load: object) -> None:
        raise KeyError("name")

    model = preset(source=str(model_folders("llama")), hidden_size=HIDDEN_SIZE)
    async with small_tracker(model) as tracker, following(tracker, shared_engine):
        with monkeypatch.context() as patched, capture_logs() as logs:
            patched.setattr(shared_engine.engine, "load", faulty)
            tracker.issue(directive(1, 2))
            await tracker.changes.until(lambda: len(tracker.reports) == 2)
        assert tracker.reports_of("d1") == ["accepted", "failed"]
        assert tracker.reports[-1][1].reason == "KeyError: 'name'"
        assert [entry["exc_info"] for entry in logs if entry["log_level"] == "error"] == [True]
        tracker.issue(directive(1, 2, epoch=2))
        await tracker.changes.until(lambda: len(tracker.reports) == 4)
        assert tracker.reports_of("d2") == ["accepted", "ready"]


async def test_a_directive_is_carried_out_once(
    shared_engine: SharedEngine, model_folders: ModelFolders
) -> None:
    model = preset(source=str(model_folders("llama")), hidden_size=HIDDEN_SIZE)
    async with small_tracker(model) as tracker, following(tracker, shared_engine) as worker:
        for epoch in (1, 2, 3):
            tracker.issue(directive(1, 2, epoch=epoch))
        await tracker.changes.until(lambda: len(tracker.reports) == 6)
        for epoch in (1, 2, 3):
            assert tracker.reports_of(f"d{epoch}") == ["accepted", "ready"]
        assert [shard.ready for shard in worker.shards] == [ShardRange(1, 2)]
