from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from meshnet_common.errors import MeshnetError, TicketError
from meshnet_common.openai.errors import ApiError, ErrorBody
from meshnet_common.protocol.messages import (
    Capabilities,
    DirectiveReport,
    DirectiveState,
    Heartbeat,
    RegisterWorker,
    RenewRoute,
)
from meshnet_worker.tracker_client import (
    NotRegisteredError,
    TrackerClient,
    TrackerRefusedError,
    TrackerUnreachableError,
    WorkerTooSmallError,
)
from meshnet_worker.trackers import Trackers
from tests.common.builders import KEY_ID, preset, signing_key
from tests.worker.builders import directive
from tests.worker.small_tracker import SmallTracker, small_tracker

REGISTRATION = RegisterWorker(
    worker_id="w0",
    url="http://127.0.0.1:7000",
    version="0.1.0",
    capabilities=Capabilities(
        vram_bytes=1000,
        quantizations=("float32",),
        benchmark_tokens_per_sec=1.0,
        benchmark_model="layer",
        device="CPU",
    ),
)
HEARTBEAT = Heartbeat(shards=(), sessions=2, kv_bytes_free=5, directive_epoch=3)
READY = DirectiveReport(state=DirectiveState.READY)


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[TrackerClient]:
    client = TrackerClient(url)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def joined() -> AsyncIterator[tuple[TrackerClient, SmallTracker]]:
    async with small_tracker(preset()) as tracker, client_of(tracker.url) as client:
        await client.register(REGISTRATION)
        yield client, tracker


def api_error(status: int, code: str | None = None) -> ApiError:
    return ApiError(status, ErrorBody("Because of that.", "invalid_request_error", None, code))


CALLS: dict[str, Callable[[TrackerClient], Awaitable[object]]] = {
    "register": lambda client: client.register(REGISTRATION),
    "heartbeat": lambda client: client.heartbeat(HEARTBEAT),
    "directives": lambda client: client.directives(0, 0.01),
    "preset": lambda client: client.preset("tiny"),
    "route": lambda client: client.route("tiny", "w0", None),
    "head workers": lambda client: client.head_workers("tiny"),
    "keys": lambda client: client.keys(),
}
OWN_CALLS: dict[str, Callable[[TrackerClient], Awaitable[object]]] = {
    "heartbeat": lambda client: client.heartbeat(HEARTBEAT),
    "directives": lambda client: client.directives(0, 0.01),
    "report": lambda client: client.report("d1", READY),
    "link probe": lambda client: client.send_probe(b"x"),
    "leave": lambda client: client.leave(),
}


async def test_a_worker_registers_with_what_it_offers() -> None:
    async with joined() as (client, tracker):
        assert tracker.registrations == [REGISTRATION]
        assert (await client.register(REGISTRATION)).token == "worker-token-2"


async def test_a_heartbeat_answers_the_trackers_time() -> None:
    async with joined() as (client, tracker):
        assert (await client.heartbeat(HEARTBEAT)).now == tracker.now
        assert tracker.heartbeats == [HEARTBEAT]


async def test_directives_are_those_after_an_epoch() -> None:
    async with joined() as (client, tracker):
        tracker.issue(directive(0, 1, epoch=3), directive(1, 2, epoch=4))
        assert [one.epoch for one in await client.directives(3, 1.0)] == [4]


async def test_waiting_for_directives_ends_with_none() -> None:
    async with joined() as (client, _):
        assert await client.directives(0, 0.01) == ()


async def test_a_report_names_its_directive() -> None:
    async with joined() as (client, tracker):
        await client.report("d7", READY)
        assert tracker.reports == [("d7", READY)]


async def test_a_worker_says_goodbye() -> None:
    async with joined() as (client, tracker):
        await client.leave()
        assert tracker.departures == ["w0"]


async def test_a_preset_is_fetched_by_name() -> None:
    async with joined() as (client, _):
        assert await client.preset("tiny") == preset()
        with pytest.raises(ApiError) as caught:
            await client.preset("huge")
        assert caught.value.status == 404


async def test_a_route_is_asked_for_with_the_callers_key() -> None:
    async with joined() as (client, tracker):
        assert await client.route("tiny", "w0", "Bearer sk-1") == "signed"
        await client.route("tiny-nf4", "w0", None)
        assert tracker.routes == [("tiny", "w0", "Bearer sk-1"), ("tiny-nf4", "w0", None)]


async def test_the_head_workers_of_a_model_are_asked_for_by_its_name() -> None:
    async with joined() as (client, tracker):
        tracker.head_workers = {"org/tiny": ["http://one", "http://two"]}
        assert await client.head_workers("org/tiny") == ("http://one", "http://two")
        assert await client.head_workers("huge") == ()


async def test_a_fresh_ticket_is_asked_for_with_the_old_one() -> None:
    async with joined() as (client, tracker):
        tracker.ticket = "fresh"
        assert await client.renew("old", frozenset({"w2", "w1"})) == "fresh"
        assert tracker.renewals == [RenewRoute(ticket="old", avoid=("w1", "w2"))]


@pytest.mark.parametrize("name", ["a/b", "a?head=w9", "../keys", "a#b", "a%2Fb", "größe"])
async def test_a_name_is_one_part_of_the_url_whatever_is_in_it(name: str) -> None:
    async with joined() as (client, tracker):
        await client.route(name, "w0", None)
        assert tracker.routes == [(name, "w0", None)]


async def test_the_keys_are_those_that_verify_tickets() -> None:
    async with joined() as (client, _):
        assert await client.keys() == {KEY_ID: signing_key().public_key()}


async def test_a_tracker_that_refuses_is_quoted() -> None:
    async with small_tracker() as tracker, client_of(tracker.url) as client:
        tracker.refusal = api_error(403)
        with pytest.raises(TrackerRefusedError, match=r"Because of that\.") as caught:
            await client.register(REGISTRATION)
        assert caught.value.exit_status == 7


@pytest.mark.parametrize("status", [500, 502, 503])
async def test_a_tracker_that_fails_at_a_registration_may_be_back_soon(status: int) -> None:
    async with small_tracker() as tracker, client_of(tracker.url) as client:
        tracker.refusal = api_error(status)
        with pytest.raises(TrackerUnreachableError, match=f"answers {status}.*Check --tracker"):
            await client.register(REGISTRATION)


async def test_a_worker_that_is_too_small_learns_it() -> None:
    async with small_tracker() as tracker, client_of(tracker.url) as client:
        tracker.refusal = api_error(422, "insufficient_memory")
        with pytest.raises(WorkerTooSmallError, match=r"Because of that\.") as caught:
            await client.register(REGISTRATION)
        assert caught.value.exit_status == 5


async def test_a_route_that_is_refused_is_answered_as_the_tracker_did() -> None:
    async with joined() as (client, tracker):
        tracker.refusal = api_error(503, "model_unavailable")
        with pytest.raises(ApiError) as caught:
            await client.route("tiny", "w0", None)
        assert (caught.value.status, caught.value.body.code) == (503, "model_unavailable")


@pytest.mark.parametrize("call", OWN_CALLS.values(), ids=OWN_CALLS)
async def test_nothing_is_asked_before_the_registration(
    call: Callable[[TrackerClient], Awaitable[object]],
) -> None:
    async with small_tracker() as tracker, client_of(tracker.url) as client:
        with pytest.raises(NotRegisteredError):
            await call(client)


@pytest.mark.parametrize("call", OWN_CALLS.values(), ids=OWN_CALLS)
async def test_a_tracker_that_has_forgotten_a_worker_says_so(
    call: Callable[[TrackerClient], Awaitable[object]],
) -> None:
    async with joined() as (client, tracker):
        tracker.forget_workers()
        with pytest.raises(NotRegisteredError):
            await call(client)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_tracker_that_is_away_is_named(
    call: Callable[[TrackerClient], Awaitable[object]],
) -> None:
    async with small_tracker(preset()) as tracker, client_of(tracker.url) as client:
        await client.register(REGISTRATION)
        client.trackers = Trackers("http://127.0.0.1:1")
        with pytest.raises(TrackerUnreachableError, match=r"127\.0\.0\.1:1.*Check --tracker"):
            await call(client)


@pytest.mark.parametrize(
    "junk",
    [b"<html>", b"[]", b"{}", b"\xff", b"[" * 9_999],
    ids=["HTML", "an array", "an empty object", "no text", "deep nesting"],
)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_an_answer_that_is_no_trackers_is_an_error_of_the_mesh(
    call: Callable[[TrackerClient], Awaitable[object]], junk: bytes
) -> None:
    async with joined() as (client, tracker):
        tracker.junk = junk
        with pytest.raises(MeshnetError):
            await call(client)


async def test_a_refusal_of_another_shape_is_told_by_its_status() -> None:
    async with small_tracker() as tracker, client_of(f"{tracker.url}/elsewhere") as client:
        with pytest.raises(TrackerRefusedError, match="nothing at /elsewhere"):
            await client.register(REGISTRATION)


async def test_keys_that_are_not_to_be_had_are_a_trackers_fault() -> None:
    async with joined() as (client, tracker):
        tracker.refusal = api_error(503)
        with pytest.raises(TrackerUnreachableError, match="answers 503"):
            await client.keys()


async def test_keys_that_are_junk_are_no_keys() -> None:
    async with joined() as (client, tracker):
        tracker.junk = b'{"keys": []}'
        with pytest.raises(TicketError):
            await client.keys()


async def test_closing_twice_is_no_fault() -> None:
    async with small_tracker() as tracker, client_of(f"{tracker.url}/") as client:
        await client.register(REGISTRATION)
        await client.close()
