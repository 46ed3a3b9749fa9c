"""Several models, Workers and loads share one disk."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from meshnet_common.shard_range import ShardRange
from meshnet_worker.weights import remote_model
from meshnet_worker.weights.errors import DiskBudgetError
from meshnet_worker.weights.planning import GAP_BYTES
from tests.weights import LAYER_BYTES, checkpoint, manifest_of, mirror_of
from tests.worker.waiting import SECONDS
from tests.worker.weights.opening import fetch, library_in, model_at, partials_in, parts_in

FILES = checkpoint()


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_model, "POLL_SECONDS", 0.0)


async def test_what_was_used_longest_ago_makes_room_and_what_is_held_stays(
    tmp_path: Path,
) -> None:
    budget = 4 * LAYER_BYTES + 20_000
    async with mirror_of(FILES) as mirror, library_in(tmp_path, budget) as library:
        weights = await library.open(model_at(mirror.url, manifest_of(FILES)))
        await fetch(weights, 4, 8)
        weights.keep(ShardRange(6, 8))
        await fetch(weights, 8, 10)
        assert parts_in(tmp_path) == {f"layer-{n:05d}" for n in (6, 7, 8, 9)}
        with pytest.raises(DiskBudgetError, match=f"--disk-budget allows {budget}"):
            await fetch(weights, 10, 11)
        assert parts_in(tmp_path) == {f"layer-{n:05d}" for n in (6, 7, 8, 9)}
        assert partials_in(tmp_path) == []
        weights.keep(None)
        await fetch(weights, 10, 11)
    assert "layer-00010" in parts_in(tmp_path)


async def test_two_workers_of_one_host_fetch_each_layer_once(tmp_path: Path) -> None:
    async with (
        mirror_of(FILES) as mirror,
        library_in(tmp_path) as one,
        library_in(tmp_path) as other,
    ):
        model = model_at(mirror.url, manifest_of(FILES))
        first, second = await one.open(model), await other.open(model)
        before = mirror.sent_bytes
        async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as tasks:
            tasks.create_task(fetch(first, 4, 8))
            tasks.create_task(fetch(second, 5, 9))
        assert mirror.sent_bytes - before <= 5 * LAYER_BYTES + 4 * GAP_BYTES
    assert len(parts_in(tmp_path)) == 5


def waits_in(logs: Sequence[EventDict]) -> list[EventDict]:
    return [entry for entry in logs if "another worker" in entry["event"]]


async def test_waiting_for_another_workers_fetch_is_told(tmp_path: Path) -> None:
    async with (
        mirror_of(FILES) as mirror,
        library_in(tmp_path) as one,
        library_in(tmp_path) as other,
    ):
        model = model_at(mirror.url, manifest_of(FILES))
        first, second = await one.open(model), await other.open(model)
        mirror.stall_after_bytes = mirror.sent_bytes + LAYER_BYTES // 2
        with capture_logs() as logs:
            async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as tasks:
                tasks.create_task(fetch(first, 4, 5))
                await mirror.stalled.wait()
                tasks.create_task(fetch(second, 4, 5))
                while not (told := waits_in(logs)):  # noqa: ASYNC110 - a log line sets no event
                    await asyncio.sleep(0)
                mirror.stall_after_bytes = None
                mirror.resumed.set()
    assert [entry["parts"] for entry in told] == [["layer-00004"]]
