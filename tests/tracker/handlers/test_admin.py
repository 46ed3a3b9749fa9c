from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import DirectiveState
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.snapshot import Pin, RebalanceDirective
from meshnet_tracker.settings import TrackerSettings
from meshnet_tracker.tokens import token_sha256
from tests.tracker.builders import MODEL, NOW, load, preset, registration, shard
from tests.tracker.running import RunningTracker, running_tracker

TOKEN = "an admin token of some length"
PLACES = ("workers", "coverage", "directives", "pins", "aliases", "drain", "plan")


@pytest.fixture
async def tracker(tmp_path: Path) -> AsyncIterator[RunningTracker]:
    """A Tracker that knows `tiny`, and has an admin token."""
    settings = replace(TrackerSettings(), admin_token_sha256=token_sha256(TOKEN))
    async with running_tracker(tmp_path / "tracker.sqlite3", settings) as running:
        await running.store.add_preset(preset(), NOW)
        yield running


async def issue(tracker: RunningTracker, *planned: RebalanceDirective) -> None:
    """Issue Rebalance Directives in this Tracker's turn."""
    term = tracker.services.turn.term
    assert term is not None
    plans = (await tracker.store.load_snapshot()).issued_plans
    await tracker.store.issue_directives(planned, plans, 600.0, tracker.clock.now(), term)


@pytest.mark.parametrize("place", PLACES)
async def test_nothing_is_told_without_the_token(tracker: RunningTracker, place: str) -> None:
    for token in ("", "wrong", TOKEN[:-1], token_sha256(TOKEN)):
        reply = await tracker.get(f"/admin/v1/{place}", token)
        assert (reply.status, reply.error["code"]) == (401, "invalid_admin_token")
        assert reply.headers["WWW-Authenticate"] == "Bearer"
        assert TOKEN not in reply.body.decode()
    assert (await tracker.get(f"/admin/v1/{place}", TOKEN)).status == 200


@pytest.mark.parametrize("place", PLACES)
async def test_where_no_token_is_set_nothing_is_there(
    empty_tracker: RunningTracker, place: str
) -> None:
    for token in ("", TOKEN, token_sha256("")):
        assert (await empty_tracker.get(f"/admin/v1/{place}", token)).status == 404


async def test_workers_are_told_as_everywhere(tracker: RunningTracker) -> None:
    await tracker.serve("w1", "http://127.0.0.1:1", shard(0, 4))
    told = (await tracker.get("/admin/v1/workers", TOKEN)).json
    assert told == (await tracker.get("/v1/workers")).json
    assert [worker["worker_id"] for worker in told["workers"]] == ["w1"]


async def test_the_coverage_of_every_variant_is_told(tracker: RunningTracker) -> None:
    await tracker.serve("w1", "http://127.0.0.1:1", shard(0, 4))
    (variant,) = (await tracker.get("/admin/v1/coverage", TOKEN)).json["variants"]
    assert (variant["own_name"], variant["is_servable"]) == ("tiny", False)
    assert variant["gaps"] == [{"start_layer": 4, "end_layer": 6}]


async def test_directives_are_told_with_why_and_how_they_ended(tracker: RunningTracker) -> None:
    await tracker.join(registration("w1"))
    worker = await tracker.join(registration("w2"))
    orders = [
        replace(load("w1", 0, 3), why="Nobody has layer 0."),
        replace(load("w2", 3, 6), why="Nobody has layer 3."),
    ]
    await issue(tracker, *orders)
    (order,) = await worker.directives()
    await worker.report(order, DirectiveState.FAILED, reason="the disk is full")
    told = (await tracker.get("/admin/v1/directives", TOKEN)).json
    assert [(d["worker_id"], d["why"]) for d in told["open"]] == [("w1", "Nobody has layer 0.")]
    assert [(d["state"], d["detail"]) for d in told["closed"]] == [("failed", "the disk is full")]


async def test_pins_aliases_and_drains_are_told(tracker: RunningTracker) -> None:
    await tracker.store.pins.set(Pin(WorkerId("w1"), MODEL, ShardRange(0, 3)), NOW)
    await tracker.store.aliases.set("chat", "tiny", NOW)
    await tracker.store.drains.set(WorkerId("w2"), NOW)
    (pin,) = (await tracker.get("/admin/v1/pins", TOKEN)).json["pins"]
    assert (pin["worker_id"], pin["start_layer"], pin["end_layer"]) == ("w1", 0, 3)
    (alias,) = (await tracker.get("/admin/v1/aliases", TOKEN)).json["aliases"]
    assert (alias["name"], alias["target"]) == ("chat", "tiny")
    assert (await tracker.get("/admin/v1/drain", TOKEN)).json == {"workers": ["w2"]}


async def test_a_plan_is_explained_and_nothing_ordered(tracker: RunningTracker) -> None:
    await tracker.serve("w1", "http://127.0.0.1:1")
    told = (await tracker.get("/admin/v1/plan", TOKEN)).json
    (order,) = told["directives"]
    assert (order["worker_id"], order["kind"], bool(order["why"])) == ("w1", "LOAD_SHARD", True)
    assert await tracker.store.operations.open_directives() == ()
