"""One request and its Endpoints: held, tried elsewhere, given up; nothing stays counted."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from meshnet_common.edge.clock import ManualClock
from meshnet_common.edge.http import open_event_stream
from meshnet_common.openai.errors import overloaded, request_blamed
from meshnet_common.openai.sse import DONE_EVENT
from meshnet_gateway.config.settings import Peer, Secret
from tests.common.edge.upstreams import NOBODY, Script, events, hang_up, post, whole
from tests.gateway.fake_endpoint import BODY, STREAM, STREAMED, WELL, behind, fake_endpoint
from tests.gateway.running import Running, endpoint, model, running, settings, show, until

WHOLE_STREAM = b"".join(STREAM)


def code_of(body: bytes) -> Any:
    return json.loads(body)["error"]["code"]


def told(body: bytes) -> Any:
    """The code of the error event at the end of a stream."""
    return code_of(body.removesuffix(DONE_EVENT).strip().split(b"\n")[-1].removeprefix(b"data: "))


def known(*urls: str, **fields: Any) -> Any:
    return settings(models=(model(*map(endpoint, urls), **fields),), ack_after_ms=60_000)


async def done(one: Running) -> None:
    """Wait until every gauge is at zero."""
    await until(lambda: not one.in_flight)


BROKEN: dict[str, Script] = {
    "reset": hang_up,
    "refused": whole(b"{}", 503),
    "bad gateway": whole(b"{}", 502),
    "failed": whole(b"{}", 500),
    "too late": whole(b"{}", 504),
    "full": whole(overloaded("Full.", 1).to_json(), 429),
    "garbage": whole(b"<html>"),
    "empty stream": events(),
    "cut in its first event": events(b"data: {half", then_break=True),
    "another model": whole(b'{"detail": "no smol here"}', 404),
}


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN)
async def test_another_endpoint_answers_whatever_is_wrong_with_the_first(script: Script) -> None:
    async with (
        fake_endpoint(script) as broken,
        fake_endpoint() as sound,
        running(known(broken.url, sound.url)) as one,
    ):
        with capture_logs():
            response, body = await post(one.url, STREAMED)
        await done(one)

    assert (response.status, body) == (200, WHOLE_STREAM)
    assert (len(broken.seen), len(sound.seen)) == (1, 1)


@pytest.mark.parametrize("script", [hang_up, whole(b"{}", 503)])
async def test_a_request_is_held_while_its_only_endpoint_reloads(script: Script) -> None:
    async with fake_endpoint(script) as fake, running(known(fake.url)) as one:
        async with asyncio.TaskGroup() as group:
            with capture_logs():
                asking = group.create_task(post(one.url, STREAMED))
                await until(lambda: len(fake.seen) >= 3)
                fake.script = WELL
        response, body = asking.result()
        await done(one)

    assert (response.status, body) == (200, WHOLE_STREAM)


async def test_many_held_requests_all_complete_when_the_endpoint_is_back() -> None:
    async with fake_endpoint(hang_up) as fake, running(known(fake.url, hold_seconds=30.0)) as one:
        async with asyncio.TaskGroup() as group:
            with capture_logs():
                asking = [group.create_task(post(one.url, STREAMED)) for _ in range(20)]
                await until(lambda: one.services.admission.lines.total >= 15)
                fake.script = WELL
        bodies = {task.result()[1] for task in asking}
        await done(one)

    assert bodies == {WHOLE_STREAM}


async def test_one_request_that_always_fails_keeps_no_other_from_an_endpoint() -> None:
    async def picky(request: web.Request) -> web.StreamResponse:
        is_poison = b"poison" in await request.read()
        return await (whole(b"{}", 503) if is_poison else WELL)(request)

    async with fake_endpoint(picky) as fake:
        one_place = model(endpoint(fake.url, max_concurrent_requests=1), hold_seconds=30.0)
        hasty = settings(models=(one_place,), connect_retries=2)
        async with running(hasty) as one, asyncio.TaskGroup() as group:
            with capture_logs():
                poison = group.create_task(post(one.url, b'{"model": "smol", "user": "poison"}'))
                await until(lambda: len(fake.seen) > 4)
                for _ in range(3):
                    async with asyncio.timeout(5):
                        assert (await post(one.url, STREAMED))[1].endswith(DONE_EVENT)
                assert not poison.done()
                poison.cancel()


async def test_a_hold_ends_in_time_with_what_the_endpoint_said_last() -> None:
    script = whole(overloaded("Loading.", 7).to_json(), 503, {"Retry-After": "7"})
    async with fake_endpoint(script) as fake, running(known(fake.url, hold_seconds=0.05)) as one:
        with capture_logs():
            response, body = await post(one.url, BODY)

    assert (response.status, response.headers["Retry-After"]) == (503, "7")
    assert code_of(body) == "overloaded"


async def test_a_hold_for_an_endpoint_that_is_not_there_ends_with_502() -> None:
    with capture_logs():
        async with running(known(NOBODY, hold_seconds=0.05)) as one:
            response, body = await post(one.url, BODY)
            await done(one)

    assert (response.status, code_of(body)) == (502, "upstream_failed")


async def test_a_fault_that_comes_late_leaves_time_for_another_endpoint() -> None:
    late = asyncio.Event()
    async with (
        fake_endpoint(behind(late, hang_up)) as frozen,
        fake_endpoint() as sound,
        running(known(frozen.url, sound.url, hold_seconds=0.5)) as one,
    ):
        asyncio.get_running_loop().call_later(0.6, late.set)
        with capture_logs():
            response, _ = await post(one.url, STREAMED)

    assert (response.status, len(frozen.seen), len(sound.seen)) == (200, 1, 1)


async def test_a_failure_that_no_other_endpoint_can_mend_is_passed_on_at_once() -> None:
    async with fake_endpoint(whole(b'{"error": "ours"}', 500)) as fake:
        with capture_logs():
            async with running(known(fake.url)) as one:
                response, body = await post(one.url, BODY)

    assert (response.status, body, len(fake.seen)) == (500, b'{"error": "ours"}', 1)


@pytest.mark.parametrize("body", [BODY, STREAMED])
async def test_a_request_that_workers_fell_over_is_given_to_nobody_else(body: bytes) -> None:
    blamed = request_blamed(60.0)
    killing = whole(blamed.to_json(), blamed.status, blamed.headers)
    async with (
        fake_endpoint(killing) as first,
        fake_endpoint(killing) as second,
        running(known(first.url, second.url)) as one,
    ):
        with capture_logs():
            response, answer = await post(one.url, body)
            await done(one)
        states = one.services.registry.configured[0]
        assert all(state.breaker.admits(one.services.steady.now()) for state in states)

    assert (response.status, code_of(answer)) == (502, "upstream_failed")
    assert (response.headers["x-should-retry"], response.headers["Retry-After"]) == ("false", "60")
    assert len(first.seen) + len(second.seen) == 1


async def test_what_is_lost_behind_the_first_event_is_not_tried_again() -> None:
    cut = events(STREAM[0], then_break=True)
    async with (
        fake_endpoint(cut) as broken,
        fake_endpoint() as sound,
        running(known(broken.url, sound.url)) as one,
    ):
        with capture_logs():
            _, body = await post(one.url, STREAMED)
        await done(one)

    assert body.startswith(STREAM[0])
    assert (told(body), len(sound.seen)) == ("worker_lost", 0)


async def test_the_clients_own_faults_are_passed_on_and_speak_against_nobody() -> None:
    async with (
        fake_endpoint(whole(b'{"error": "no"}', 400)) as fake,
        running(known(fake.url)) as one,
    ):
        for _ in range(20):
            response, body = await post(one.url, BODY)
            assert (response.status, body) == (400, b'{"error": "no"}')
        state = next(iter(one.services.registry.configured[0]))
        assert state.breaker.admits(one.services.steady.now())


async def test_an_endpoint_gets_the_key_that_it_was_given_and_never_the_clients() -> None:
    async with fake_endpoint(whole(b"{}")) as fake, fake_endpoint(whole(b"{}")) as open_one:
        keyed = model(endpoint(fake.url, api_key=Secret("theirs")))
        other = model(endpoint(open_one.url), id="other")
        async with running(settings(models=(keyed, other))) as one:
            mine = {"Authorization": "Bearer mine"}
            await post(one.url, BODY, mine)
            await post(one.url, b'{"model": "other"}', mine)

    assert fake.seen[0].headers.getall("Authorization") == ["Bearer theirs"]
    assert "Authorization" not in open_one.seen[0].headers


async def test_the_limit_learns_from_the_pace_of_answers() -> None:
    clock = ManualClock(100.0)

    async def slowly(request: web.Request) -> web.StreamResponse:
        response = await open_event_stream(request)
        for piece in STREAM:
            clock.advance(0.1)
            await response.write(piece)
        return response

    async with fake_endpoint(slowly) as fake, running(known(fake.url), clock) as one:
        limit = next(iter(one.services.registry.configured[0])).limit
        for _ in range(20):
            await post(one.url, STREAMED)

    assert limit.facts.windows >= 1


async def test_a_fault_narrows_the_limit_at_once() -> None:
    async with fake_endpoint(hang_up) as fake, fake_endpoint() as other:
        with capture_logs():
            async with running(known(fake.url, other.url)) as one:
                await post(one.url, STREAMED)
                first, _ = one.services.registry.configured[0]

    assert first.limit.facts.overloads == 1


@pytest.mark.parametrize("url", ["http://a..b:80", f"http://{'a' * 64}:80"])
async def test_a_host_name_that_is_none_is_nobody(url: str) -> None:
    peers = (Peer(id="there", base_url=url),)
    named = (model(endpoint(url), hold_seconds=0.05),)
    known = settings(models=named, peers=peers, meshes=(url,), hold_seconds=0.05)
    with capture_logs():
        async with running(known) as one:
            for body in (BODY, b'{"model": "other"}'):
                response, _ = await post(one.url, body)
                assert response.status == 502
            assert [shown["id"] for shown in (await show(one.url, "/v1/models"))["data"]] == [
                "smol"
            ]
            assert not await one.services.is_ready()
