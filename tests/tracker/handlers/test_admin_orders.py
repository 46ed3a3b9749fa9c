from urllib.parse import quote

import pytest

from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.snapshot import Pin
from tests.tracker.builders import MODEL, NOW, preset, shard
from tests.tracker.handlers.test_admin import TOKEN, tracker
from tests.tracker.running import Reply, RunningTracker

__all__ = ["tracker"]

PIN = {"worker_id": "w1", "model": "tiny", "start_layer": 0, "end_layer": 3}


async def delete(running: RunningTracker, place: str, token: str = TOKEN) -> Reply:
    return await running.call("DELETE", f"/admin/v1/{place}", None, token)


@pytest.mark.parametrize("place", ["pins", "drain", "aliases", "aliases/rollback", "plan"])
async def test_nothing_is_changed_without_the_token(tracker: RunningTracker, place: str) -> None:
    for token in ("", "wrong"):
        assert (await tracker.post(f"/admin/v1/{place}", PIN, token)).status == 401
    for below in ("pins/w1", "drain/w1"):
        assert (await delete(tracker, below, "wrong")).status == 401
    assert not tracker.services.rebalance.is_rung
    assert await tracker.store.pins.all() == ()


async def test_a_worker_is_pinned_and_let_go(tracker: RunningTracker) -> None:
    reply = await tracker.post("/admin/v1/pins", PIN, TOKEN)
    assert (reply.status, reply.json["quantization"]) == (201, "bfloat16")
    assert await tracker.store.pins.all() == (Pin(WorkerId("w1"), MODEL, ShardRange(0, 3)),)
    assert tracker.services.rebalance.is_rung
    assert (await delete(tracker, "pins/w1")).status == 204
    assert (await delete(tracker, "pins/w1")).status == 404


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"end_layer": 7}, 400),
        ({"end_layer": 0}, 400),
        ({"start_layer": -1}, 400),
        ({"end_layer": "3"}, 400),
        ({"model": "nothing"}, 404),
    ],
)
async def test_a_pin_that_makes_no_sense_is_refused(
    tracker: RunningTracker, fields: dict[str, object], status: int
) -> None:
    reply = await tracker.post("/admin/v1/pins", {**PIN, **fields}, TOKEN)
    assert (reply.status, set(reply.error)) == (status, {"message", "type", "param", "code"})
    assert await tracker.store.pins.all() == ()


@pytest.mark.parametrize("worker", ["", "a b", "x" * 129, "w1\0", "\u00fc"])
async def test_who_cannot_be_a_worker_is_a_bad_request_or_not_there(
    tracker: RunningTracker, worker: str
) -> None:
    await tracker.serve("w1", "http://127.0.0.1:1", shard(0, 6))
    for place, order in (("pins", PIN), ("drain", {})):
        reply = await tracker.post(f"/admin/v1/{place}", {**order, "worker_id": worker}, TOKEN)
        assert (reply.status, reply.error["param"]) == (400, "worker_id")
        assert (await delete(tracker, f"{place}/{quote(worker, safe='')}")).status == 404
    assert await tracker.store.drains.all() == frozenset()


async def test_a_live_worker_can_be_drained_and_taken_back(tracker: RunningTracker) -> None:
    order = {"worker_id": "w1"}
    assert (await tracker.post("/admin/v1/drain", order, TOKEN)).status == 404
    await tracker.serve("w1", "http://127.0.0.1:1", shard(0, 6))
    assert (await tracker.post("/admin/v1/drain", order, TOKEN)).status == 201
    (view,) = (await tracker.store.load_snapshot()).snapshot.workers
    assert view.retiring
    assert (await delete(tracker, "drain/w1")).status == 204
    assert (await delete(tracker, "drain/w1")).status == 404


async def test_a_cut_over_waits_for_all_layers_unless_it_is_forced(
    tracker: RunningTracker,
) -> None:
    await tracker.store.add_preset(preset("next"), NOW)
    order: dict[str, object] = {"name": "chat", "target": "next"}
    reply = await tracker.post("/admin/v1/aliases", order, TOKEN)
    assert (reply.status, reply.error["code"]) == (503, "model_unavailable")
    assert await tracker.store.aliases.all() == ()
    reply = await tracker.post("/admin/v1/aliases", {**order, "force": True}, TOKEN)
    assert (reply.status, reply.json["target"]) == (200, "next")
    await tracker.serve("w1", "http://127.0.0.1:1", shard(0, 6))
    reply = await tracker.post("/admin/v1/aliases", {**order, "target": "tiny"}, TOKEN)
    assert (reply.status, reply.json["prior"]) == (200, "next")
    reply = await tracker.post("/admin/v1/aliases/rollback", {"name": "chat"}, TOKEN)
    assert (reply.status, reply.json["target"]) == (200, "next")


async def test_what_cannot_be_an_alias_is_refused(tracker: RunningTracker) -> None:
    order = {"name": "chat", "target": "nothing"}
    assert (await tracker.post("/admin/v1/aliases", order, TOKEN)).status == 404
    reply = await tracker.post("/admin/v1/aliases", {**order, "force": True}, TOKEN)
    assert reply.status == 400
    reply = await tracker.post("/admin/v1/aliases/rollback", {"name": "chat"}, TOKEN)
    assert (reply.status, "nothing before" in reply.error["message"]) == (400, True)


async def test_a_planning_pass_can_be_asked_for(tracker: RunningTracker) -> None:
    assert not tracker.services.rebalance.is_rung
    assert (await tracker.post("/admin/v1/plan", {}, TOKEN)).status == 202
    assert tracker.services.rebalance.is_rung
