import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from meshnet_common.openai.errors import ApiError, ErrorBody
from meshnet_common.presets import ModelPreset
from meshnet_common.protocol.messages import Capabilities, Heartbeat
from meshnet_common.protocol.tickets import TICKET_HEADER
from meshnet_worker.daemon import run_worker
from meshnet_worker.options import BytesOfVram, WorkerOptions
from meshnet_worker.speeds import LINK_SECONDS
from meshnet_worker.tracker_client import WorkerTooSmallError
from tests.common.builders import hop, preset, ticket, token_of
from tests.worker.builders import directive
from tests.worker.conftest import ModelFolders
from tests.worker.models import HIDDEN_SIZE, LAYERS, greedy_answer, prompt_of
from tests.worker.small_tracker import SmallTracker, small_tracker

START_SECONDS = 60.0
BUDGET_BYTES = 100_000
BENCHMARK_SECONDS = 5.0
SLACK_SECONDS = 5.0
LONG_ANSWER_TOKENS = 400


def options(tracker: SmallTracker, folder: Path) -> WorkerOptions:
    return WorkerOptions(
        tracker_urls=(tracker.url,),
        vram=BytesOfVram(BUDGET_BYTES),
        host="127.0.0.1",
        port=0,
        advertised_url=None,
        device="cpu",
        threads=1,
        tracker_mode=True,
        state_folder=folder / "state",
        ready_file=folder / "ready",
        chunk_tokens=4,
        weights_folder=folder / "weights",
    )


@pytest.fixture(autouse=True)
def own_runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of other tests must not share this one's cores."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))


class Daemon:
    """A running Worker, seen from outside."""

    def __init__(self, tracker: SmallTracker, folder: Path, session: aiohttp.ClientSession) -> None:
        self.tracker = tracker
        self.ready_file = folder / "ready"
        self.session = session

    @property
    def worker_id(self) -> str:
        return self.tracker.registrations[0].worker_id

    @property
    def url(self) -> str:
        return self.tracker.registrations[0].url

    async def status(self, path: str) -> int:
        async with self.session.get(f"{self.url}{path}") as response:
            return response.status

    async def json(self, path: str) -> Any:
        async with self.session.get(f"{self.url}{path}") as response:
            return await response.json()

    async def answer(self, prompt: list[int], tokens: int) -> str:
        claims = ticket(hop(self.worker_id, 0, LAYERS, self.url))
        content = " ".join(f"w{token}" for token in prompt)
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": content}],
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        url, headers = f"{self.url}/v1/chat/completions", {TICKET_HEADER: token_of(claims)}
        async with self.session.post(url, json=body, headers=headers) as response:
            text: str = (await response.json())["choices"][0]["message"]["content"]
            return text

    async def until_busy(self) -> None:
        """Wait until a Session is open."""
        async with asyncio.timeout(SLACK_SECONDS):
            while not (await self.json("/v1/kv"))["sessions"]:
                pass

    @staticmethod
    def stop() -> None:
        os.kill(os.getpid(), signal.SIGTERM)


@asynccontextmanager
async def running(tracker: SmallTracker, folder: Path) -> AsyncIterator[Daemon]:
    """A whole Worker with a real engine; the block must stop it."""
    async with (
        aiohttp.ClientSession() as session,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(run_worker(options(tracker, folder)))
        daemon = Daemon(tracker, folder, session)
        await tracker.changes.until(lambda: tracker.heartbeats, START_SECONDS)
        yield daemon


async def test_a_worker_joins_serves_and_says_goodbye(
    tmp_path: Path, model_folders: ModelFolders
) -> None:
    model = preset(source=str(model_folders("llama")), hidden_size=HIDDEN_SIZE)
    with capture_logs() as logs:
        await _join_serve_and_leave(model, tmp_path)
    (device,) = (line for line in logs if line["event"] == "device")
    # All of it takes 2 seconds alone; other tests may run beside it.
    assert device["benchmark_seconds"] + LINK_SECONDS < BENCHMARK_SECONDS + SLACK_SECONDS


def _check_offer(offered: Capabilities, first: Heartbeat) -> None:
    assert (offered.vram_bytes, offered.device) == (BUDGET_BYTES, "CPU")
    assert {"bfloat16", "float32", "q4k"} <= set(offered.quantizations)
    assert offered.starts_at_zero
    assert offered.benchmark_tokens_per_sec == offered.decode_tokens_per_sec_per_layer > 0
    assert offered.prefill_tokens_per_sec_per_layer > 0
    assert offered.memory_bytes_per_sec > 0
    assert first.link_bytes_per_sec > 0
    assert first.speeds_of == ""


async def _join_serve_and_leave(model: ModelPreset, folder: Path) -> None:
    async with small_tracker(model) as tracker, running(tracker, folder) as daemon:
        (registration,) = tracker.registrations
        assert daemon.ready_file.read_text() == f"{daemon.url}\n"
        _check_offer(registration.capabilities, tracker.heartbeats[0])
        assert (await daemon.status("/healthz"), await daemon.status("/readyz")) == (200, 503)

        tracker.issue(directive(0, LAYERS))
        await tracker.changes.until(lambda: "ready" in tracker.reports_of("d1"))
        assert await daemon.status("/readyz") == 200
        await tracker.changes.until(lambda: tracker.heartbeats[-1].speeds_of == "tiny")
        weights = sum(model.variants[0].layer_bytes) + 50 + 70
        free = tracker.heartbeats[-1].kv_bytes_free
        kv = await daemon.json("/v1/kv")
        row_bytes = kv["block_positions"] * LAYERS * 10
        assert free == (BUDGET_BYTES - weights) // row_bytes * row_bytes
        assert [pool["blocks"] for pool in kv["pools"]] == [free // row_bytes]

        prompt = prompt_of(9)
        expected = " ".join(f"w{token}" for token in greedy_answer("llama", 9, 3))
        assert await daemon.answer(prompt, 3) == expected
        steps = (await daemon.json("/v1/steps"))["steps"]
        assert sum(row["positions"] for row in steps) == 9 + 2

        assert (await daemon.json("/v1/kv"))["free_bytes"] == free

        daemon.stop()
    assert tracker.departures == [registration.worker_id]
    with pytest.raises(aiohttp.ClientConnectorError):
        async with aiohttp.ClientSession() as session, session.get(registration.url):
            pass


async def test_a_worker_that_is_stopped_finishes_what_nobody_can_take_over(
    tmp_path: Path, model_folders: ModelFolders
) -> None:
    model = preset(source=str(model_folders("llama")), hidden_size=HIDDEN_SIZE)
    async with small_tracker(model) as tracker:
        async with running(tracker, tmp_path) as daemon, asyncio.TaskGroup() as tasks:
            tracker.head_workers = {"tiny": [daemon.url]}
            tracker.issue(directive(0, LAYERS))
            await tracker.changes.until(lambda: "ready" in tracker.reports_of("d1"))
            answer = tasks.create_task(daemon.answer(prompt_of(9), LONG_ANSWER_TOKENS))
            await daemon.until_busy()
            daemon.stop()
            await tracker.changes.until(lambda: tracker.heartbeats[-1].leaving)
            assert not answer.done()
        expected = greedy_answer("llama", 9, LONG_ANSWER_TOKENS)
        assert answer.result() == " ".join(f"w{token}" for token in expected)
        assert len(tracker.departures) == 1


async def test_a_worker_that_fits_no_layer_ends_with_the_trackers_words(tmp_path: Path) -> None:
    async with small_tracker() as tracker:
        body = ErrorBody("1 of 2 bytes", "invalid_request_error", None, "insufficient_memory")
        tracker.refusal = ApiError(422, body)
        with pytest.RaisesGroup(pytest.RaisesExc(WorkerTooSmallError, match="1 of 2 bytes")):
            await run_worker(options(tracker, tmp_path))
    assert not (tmp_path / "ready").exists()
