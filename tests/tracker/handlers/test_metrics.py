from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from meshnet_common.protocol.messages import DirectiveState
from meshnet_tracker.handlers.metrics import LATE_SECONDS
from meshnet_tracker.settings import TrackerSettings
from meshnet_tracker.store.errors import DatabaseUnavailableError
from meshnet_tracker.tokens import token_sha256
from tests.tracker.builders import heartbeat, load, shard
from tests.tracker.handlers.test_admin import issue
from tests.tracker.running import RunningTracker, running_tracker

Sample = tuple[str, frozenset[tuple[str, str]]]
GAP = {"kind": "LOAD_SHARD", "reason": "gap"}


async def scrape(tracker: RunningTracker) -> dict[Sample, float]:
    reply = await tracker.get("/metrics")
    assert reply.status == 200
    assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name.removeprefix("meshnet_tracker_"), frozenset(sample.labels.items())): (
            sample.value
        )
        for family in text_string_to_metric_families(reply.body.decode())
        for sample in family.samples
    }


def name(what: str, **labels: str) -> Sample:
    return what, frozenset(labels.items())


async def test_coverage_and_workers_are_told(tracker: RunningTracker) -> None:
    await tracker.serve("w1", "http://127.0.0.1:1", shard(0, 4))
    told = await scrape(tracker)
    variant = {"model": "tiny", "quantization": "bfloat16"}
    assert told[name("coverage_missing_layers", **variant)] == 2
    assert told[name("coverage_thinnest_replicas", **variant)] == 0
    assert told[name("workers", state="live")] == 1
    assert told[name("database_up")] == 1
    assert (told[name("plans")], told[name("planning_frozen")]) == (1, 0)
    assert told[name("planning_term")] == 1


async def test_open_directives_are_told_with_their_age_and_closed_ones_once(
    tracker: RunningTracker,
) -> None:
    await scrape(tracker)
    worker = await tracker.join()
    await issue(tracker, load("w1", 0, 6))
    tracker.clock.advance(9)
    told = await scrape(tracker)
    assert told[name("directives_open", **GAP, state="issued")] == 1
    assert told[name("directive_oldest_seconds", **GAP, state="issued")] == 9
    (order,) = await worker.directives()
    await worker.report(order, DirectiveState.FAILED, reason="the disk is full")
    for _ in range(2):
        tracker.clock.advance(LATE_SECONDS + 1)
        told = await scrape(tracker)
        assert told[name("directives_ended_total", **GAP, state="failed")] == 1
        assert name("directives_open", **GAP, state="issued") not in told


async def test_answers_are_counted_by_the_pattern_of_their_path(tracker: RunningTracker) -> None:
    for where in ("/v1/coverage/tiny", "/v1/coverage/nothing", "/nowhere/at/all"):
        await tracker.get(where)
    told = await scrape(tracker)
    pattern = "/v1/coverage/{model}"
    assert told[name("requests_total", endpoint=pattern, status="200")] == 1
    assert told[name("requests_total", endpoint=pattern, status="404")] == 1
    assert told[name("requests_total", endpoint="none", status="404")] == 1


async def test_a_route_is_timed_and_a_late_heartbeat_seen(tracker: RunningTracker) -> None:
    worker = await tracker.serve("w1", "http://127.0.0.1:1", shard(0, 6))
    tracker.clock.advance(6)
    await worker.beat(shard(0, 6))
    await tracker.get("/v1/route/tiny")
    told = await scrape(tracker)
    assert told[name("route_seconds_count")] == 1
    assert told[name("heartbeat_lag_seconds_sum")] == 2


async def test_a_scrape_tells_what_it_can_without_the_database(
    tracker: RunningTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scrape(tracker)

    async def refuse() -> None:
        raise DatabaseUnavailableError("It is away.")

    monkeypatch.setattr(tracker.store.operations, "tally_directives", refuse)
    told = await scrape(tracker)
    assert told[name("database_up")] == 0
    assert told[name("requests_total", endpoint="/metrics", status="200")] == 1


async def test_no_secret_and_no_workers_name_is_in_it(tracker: RunningTracker) -> None:
    worker = await tracker.serve("w1-secret-name", "http://127.0.0.1:1", shard(0, 6))
    await worker.directives()
    text = (await tracker.get("/metrics")).body.decode()
    assert worker.token not in text
    assert "w1-secret-name" not in text


async def test_heartbeats_of_strangers_are_not_counted(tracker: RunningTracker) -> None:
    worker = await tracker.join()
    for _ in range(2):
        reply = await tracker.post(f"{worker.where}/heartbeat", heartbeat(), "wrong")
        assert reply.status == 401
    assert (await scrape(tracker))[name("heartbeat_lag_seconds_count")] == 0


async def test_metrics_may_have_a_token_of_their_own(tmp_path: Path) -> None:
    token = "a metrics token of some length"
    settings = TrackerSettings(metrics_token_sha256=token_sha256(token))
    async with running_tracker(tmp_path / "tracker.sqlite3", settings) as closed:
        for shown in ("", "another", f"{token} "[1:]):
            reply = await closed.get("/metrics", shown)
            assert (reply.status, reply.error["code"]) == (401, "invalid_metrics_token")
            assert reply.headers["WWW-Authenticate"] == "Bearer"
        assert (await closed.get("/metrics", token)).status == 200
