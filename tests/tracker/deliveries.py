"""Trackers that pass answers on from small Head Workers, and what comes of it."""

import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from meshnet_tracker.settings import TrackerSettings
from meshnet_tracker.tries import ProxyPolicy
from tests.tracker import heads
from tests.tracker.builders import NOW, heartbeat, preset, shard
from tests.tracker.heads import STREAM, FakeHead, running_head
from tests.tracker.running import CHAT, Reply, RunningTracker, running_tracker

WHERE = "/v1/chat/completions"
STREAMED = {**CHAT, "stream": True}
QUICK = ProxyPolicy(
    connect_retries=3,
    connect_backoff_seconds=0.05,
    hold_seconds=5.0,
    ack_after_seconds=60.0,
)

BOTH = pytest.mark.parametrize(
    ("chat", "answer"), [(STREAMED, STREAM), (CHAT, heads.WHOLE)], ids=["stream", "whole"]
)


@asynccontextmanager
async def tracker_with(tmp_path: Path, policy: ProxyPolicy) -> AsyncIterator[RunningTracker]:
    settings = TrackerSettings(proxy=policy)
    async with running_tracker(tmp_path / "tracker.sqlite3", settings) as running:
        await running.store.add_preset(preset(), NOW)
        yield running


@asynccontextmanager
async def serving(
    tracker: RunningTracker, *behaviours: heads.Behaviour
) -> AsyncIterator[list[FakeHead]]:
    """Serve the whole model on Head Workers that are chosen in this order."""
    async with AsyncExitStack() as stack:
        running = []
        for place, behaviour in enumerate(behaviours):
            head = await stack.enter_async_context(running_head(behaviour))
            worker = await tracker.serve(f"w{place}", head.url, shard(0, 6))
            busy = heartbeat(shard(0, 6), sessions=9 * place)
            await tracker.post(f"{worker.where}/heartbeat", busy, worker.token)
            running.append(head)
        yield running


def unused_url() -> str:
    """Return a URL where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def error_in(reply: Reply) -> dict[str, str]:
    """The error event at the end of a stream, which `[DONE]` must follow."""
    *_, event, done, rest = reply.body.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    data = event.splitlines()[-1].removeprefix(b"data: ")
    error: dict[str, str] = msgspec.json.decode(data)["error"]
    return error
