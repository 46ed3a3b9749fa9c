import asyncio

import msgspec
import pytest

from meshnet_common.protocol.messages import ShardState
from tests.tracker.builders import heartbeat, registration, shard
from tests.tracker.running import RunningTracker


async def test_a_worker_joins_with_a_token_and_learns_its_intervals(
    tracker: RunningTracker,
) -> None:
    reply = await tracker.post("/v1/workers", registration("w1"))
    assert reply.status == 201
    assert reply.json["worker_id"] == "w1"
    assert len(reply.json["token"]) >= 32
    assert reply.json["heartbeat_seconds"] == 4.0
    assert reply.json["lost_after_seconds"] == 12.0


async def test_a_worker_that_fits_no_layer_is_told_both_numbers(tracker: RunningTracker) -> None:
    reply = await tracker.post("/v1/workers", registration(vram_bytes=1249))
    assert (reply.status, reply.error["code"]) == (422, "insufficient_memory")
    assert "999 bytes" in reply.error["message"]
    assert "1000 bytes" in reply.error["message"]
    assert (await tracker.post("/v1/workers", registration(vram_bytes=1250))).status == 201


async def test_without_presets_every_worker_may_join(empty_tracker: RunningTracker) -> None:
    assert (await empty_tracker.post("/v1/workers", registration(vram_bytes=1))).status == 201


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("worker_id", ""),
        ("worker_id", "a b"),
        ("url", "ftp://host"),
        ("url", "http://host/with?query"),
        ("version", "v" * 65),
    ],
)
async def test_a_registration_that_breaks_a_rule_names_the_field(
    tracker: RunningTracker, field: str, value: str
) -> None:
    body = {**msgspec.to_builtins(registration()), field: value}
    reply = await tracker.post("/v1/workers", body)
    assert (reply.status, reply.error["param"]) == (400, field)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"worker_id": 1}', b"\xff"])
async def test_a_registration_that_is_no_registration_is_refused(
    tracker: RunningTracker, body: bytes
) -> None:
    reply = await tracker.post("/v1/workers", body)
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")


async def test_a_heartbeat_needs_the_workers_own_token(tracker: RunningTracker) -> None:
    worker = await tracker.join(registration("w1"))
    other = await tracker.join(registration("w2"))
    assert (await worker.beat()).json == {"now": tracker.clock.now(), "measure": []}
    for token in ("", "wrong", other.token):
        reply = await tracker.post(f"{worker.where}/heartbeat", heartbeat(), token)
        assert (reply.status, reply.error["code"]) == (401, "invalid_worker_token")
        assert reply.headers["WWW-Authenticate"] == "Bearer"


async def test_an_unknown_worker_is_told_to_register_again(tracker: RunningTracker) -> None:
    reply = await tracker.post("/v1/workers/stranger/heartbeat", heartbeat(), "token")
    assert reply.status == 401
    assert "POST /v1/workers" in reply.error["message"]


@pytest.mark.parametrize("worker_id", ["a%00b", "%20", "x" * 129])
async def test_an_id_that_nobody_can_have_fails_no_others_with_it(
    tracker: RunningTracker, worker_id: str
) -> None:
    """The words of many Workers share a transaction, and PostgreSQL refuses a NUL."""
    worker = await tracker.join(registration("w1"))
    strange = f"/v1/workers/{worker_id}/heartbeat"
    async with asyncio.TaskGroup() as tasks:
        refused = [tasks.create_task(tracker.post(strange, heartbeat())) for _ in range(4)]
        taken = [tasks.create_task(worker.beat()) for _ in range(4)]
    assert {task.result().status for task in refused} == {401}
    assert len([task.result() for task in taken]) == 4


async def test_the_newest_registration_wins(tracker: RunningTracker) -> None:
    old = await tracker.join(registration("w1"))
    await old.beat(shard(0, 6))
    new = await tracker.join(registration("w1"))
    assert (await old.beat(shard(0, 6))).status == 401
    assert (await new.beat()).status == 200
    assert (await tracker.get("/v1/coverage/tiny")).json == [
        {"start_layer": 0, "end_layer": 6, "worker_count": 0}
    ]


async def test_an_impossible_shard_is_refused(tracker: RunningTracker) -> None:
    worker = await tracker.join()
    assert (await worker.beat(shard(3, 3))).status == 400
    assert (await worker.beat(shard(0, 6), directive_epoch=-1)).status == 400


async def test_a_worker_may_measure_its_link_with_its_own_token(tracker: RunningTracker) -> None:
    worker = await tracker.join()
    where = f"{worker.where}/link-probe"
    assert (await tracker.post(where, bytes(1 << 20), worker.token)).status == 204
    assert (await tracker.post(where, b"x", "wrong")).status == 401
    assert (await tracker.post(where, bytes(5 << 20), worker.token)).status == 413


async def test_a_worker_that_leaves_is_gone_at_once(tracker: RunningTracker) -> None:
    worker = await tracker.join()
    await worker.beat(shard(0, 6))
    assert (await worker.leave()).status == 204
    assert (await worker.beat()).status == 401
    assert (await tracker.get("/v1/workers")).json == {"workers": []}


async def test_the_list_shows_what_loads_and_how_far_it_is(tracker: RunningTracker) -> None:
    worker = await tracker.join()
    await worker.beat(shard(0, 3, ShardState.LOADING, bytes_done=512))
    tracker.clock.advance(2.5)
    (listed,) = (await tracker.get("/v1/workers")).json["workers"]
    assert listed["state"] == "live"
    assert listed["seconds_since_heartbeat"] == 2.5
    (loading,) = listed["shards"]
    assert (loading["state"], loading["bytes_done"]) == ("loading", 512)
    assert worker.token not in str(listed)


async def test_a_first_heartbeat_and_every_change_asks_for_a_planning_pass(
    tracker: RunningTracker,
) -> None:
    async def asked() -> bool:
        rung = tracker.services.rebalance.is_rung
        await tracker.services.rebalance.wait(0)
        return rung

    await tracker.post("/v1/workers", registration("w1"))
    assert not await asked()
    worker = await tracker.join(registration("w1"))
    assert await asked()
    await worker.beat(shard(0, 6))
    assert await asked()
    await worker.beat(shard(0, 6))
    assert not await asked()
    await worker.leave()
    assert await asked()


async def test_a_leaving_worker_is_shown_as_such_and_on_no_route(tracker: RunningTracker) -> None:
    worker = await tracker.join()
    await worker.beat(shard(0, 6))
    assert (await tracker.get("/v1/route/tiny")).status == 200
    await worker.beat(shard(0, 6), leaving=True)
    (listed,) = (await tracker.get("/v1/workers")).json["workers"]
    assert listed["state"] == "leaving"
    assert (await tracker.get("/v1/route/tiny")).status == 503
    assert (await tracker.get("/v1/head-workers/tiny")).json == {"endpoints": []}
    (row,) = (await tracker.get("/v1/coverage/tiny")).json
    assert row["worker_count"] == 0
