import asyncio
from pathlib import Path

import pytest

from meshnet_common.edge.clock import loop_time
from meshnet_common.protocol.messages import RouteHop
from meshnet_tracker.answer_times import (
    OVERHEAD_HEADER,
    QUEUE_HEADER,
    ROUTE_HEADER,
    AnswerTimes,
    Doing,
    route_id,
)
from tests.tracker import heads
from tests.tracker.builders import MODEL, registration, shard
from tests.tracker.deliveries import QUICK, STREAMED, WHERE, serving, tracker_with, unused_url
from tests.tracker.embedders import BODY as TEXTS
from tests.tracker.embedders import WHERE as EMBEDDINGS
from tests.tracker.heads import running_head
from tests.tracker.running import CHAT, until

HOPS = [
    RouteHop(worker_id="w1", url="http://one", start=0, end=3),
    RouteHop(worker_id="w2", url="http://two", start=3, end=6),
]


class Hands:
    """A clock's."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_each_moment_is_counted_once_and_as_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    hands = Hands()
    monkeypatch.setattr("meshnet_tracker.answer_times.loop_time", hands)
    times = AnswerTimes()
    for doing in (Doing.QUEUED, Doing.AT_WORKERS, Doing.QUEUED, Doing.HERE, Doing.AT_WORKERS):
        hands.now += 0.25
        times.turn(doing)
    hands.now += 0.25
    for _ in range(2):
        assert times.headers() == {QUEUE_HEADER: "500", OVERHEAD_HEADER: "500"}


def test_a_route_has_one_name_whatever_its_urls_and_nobody_reads_its_workers_in_it() -> None:
    moved = [
        RouteHop(worker_id=hop.worker_id, url="http://x", start=hop.start, end=hop.end)
        for hop in HOPS
    ]
    assert route_id(HOPS) == route_id(moved)
    others = [HOPS[:1], HOPS[::-1], [HOPS[0], RouteHop(worker_id="w3", url="", start=3, end=6)]]
    assert len({route_id(HOPS), *map(route_id, others)}) == 4
    assert "w1" not in route_id(HOPS)


async def passed(seconds: float) -> None:
    due = loop_time() + seconds
    await until(lambda: loop_time() >= due)


@pytest.mark.parametrize("chat", [STREAMED, CHAT], ids=["stream", "whole"])
async def test_an_answer_tells_where_its_time_went(tmp_path: Path, chat: dict[str, object]) -> None:
    async with (
        asyncio.timeout(10),
        tracker_with(tmp_path, QUICK) as tracker,
        running_head(heads.streams) as head,
        asyncio.TaskGroup() as tasks,
    ):
        joining = await tracker.join(registration("w1", head.url))
        asking = tasks.create_task(tracker.post(WHERE, chat))
        await until(lambda: tracker.services.held.ahead(MODEL, 1000) == 1)
        await passed(0.1)
        await joining.beat(shard(0, 6))
    told = asking.result().headers
    assert int(told[QUEUE_HEADER]) >= 100
    assert int(told["openai-processing-ms"]) >= int(told[QUEUE_HEADER]) + int(told[OVERHEAD_HEADER])
    hop = RouteHop(worker_id="w1", url="", start=0, end=6)
    assert told[ROUTE_HEADER] == route_id([hop])


async def test_time_at_workers_is_no_overhead_and_a_place_in_their_line_is_queueing(
    tmp_path: Path,
) -> None:
    async with (
        asyncio.timeout(10),
        tracker_with(tmp_path, QUICK) as tracker,
        serving(tracker, heads.lives_after(0, ahead=2)) as (head,),
        asyncio.TaskGroup() as tasks,
    ):
        asking = tasks.create_task(tracker.post(WHERE, CHAT))
        await until(lambda: bool(head.bodies))
        # It says every tenth of a second that others are before this one.
        await passed(0.3)
        head.go_on.set()
    told = asking.result().headers
    assert int(told[QUEUE_HEADER]) >= 150
    assert int(told[OVERHEAD_HEADER]) < int(told[QUEUE_HEADER])


async def test_an_error_tells_it_as_well_as_far_as_it_came(tmp_path: Path) -> None:
    async with tracker_with(tmp_path, QUICK) as tracker:
        await tracker.serve("w1", unused_url(), shard(0, 6))
        for where, body in ((WHERE, CHAT), (EMBEDDINGS, TEXTS)):
            told = (await tracker.post(where, body)).headers
            assert "openai-processing-ms" in told
            assert (ROUTE_HEADER in told) == (where == WHERE)
        assert QUEUE_HEADER not in (await tracker.get("/healthz")).headers
