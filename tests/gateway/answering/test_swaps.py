"""An Endpoint that serves another model by now: nobody gets its answer, or waits for it."""

import asyncio

from aiohttp import web
from structlog.testing import capture_logs

from meshnet_common.edge.clock import ManualClock
from meshnet_common.edge.http import open_event_stream
from meshnet_gateway.serving.watch import FRESH_SECONDS
from tests.common.edge.upstreams import endless, hang_up, post, whole
from tests.gateway.answering.test_attempts import code_of, done, known, told
from tests.gateway.fake_endpoint import BODY, STREAM, STREAMED, WELL, fake_endpoint
from tests.gateway.running import endpoint, model, running, settings, until


async def test_a_held_request_never_gets_the_answer_of_another_model() -> None:
    async with fake_endpoint(hang_up, models=["smol"]) as fake, running(known(fake.url)) as one:
        async with asyncio.TaskGroup() as group:
            with capture_logs():
                asking = group.create_task(post(one.url, BODY))
                await until(lambda: len(fake.seen) == 1)
                fake.models, fake.script = ["other"], whole(b'{"model": "other"}')
        response, body = asking.result()
        await done(one)

    assert (response.status, code_of(body)) == (502, "upstream_failed")
    assert b"other" not in body


async def test_a_model_that_was_swapped_away_is_found_again_as_soon_as_it_is_back() -> None:
    async with fake_endpoint(WELL, models=["smol"]) as fake:
        with capture_logs():
            async with running(known(fake.url), clock := ManualClock(100.0)) as one:
                fake.models = ["other"]
                await one.services.watch.look_round()
                clock.advance(FRESH_SECONDS)
                looks = len(fake.looks)
                gone = [(await post(one.url, BODY))[0].status for _ in range(5)]
                assert (gone, len(fake.looks)) == ([502] * 5, looks + 1)
                fake.models = ["smol"]
                clock.advance(FRESH_SECONDS)
                response, _ = await post(one.url, STREAMED)

    assert response.status == 200


async def test_all_that_wait_for_a_model_that_was_swapped_away_are_told() -> None:
    async with fake_endpoint(endless(STREAM[0]), models=["smol"]) as fake:
        one_place = model(endpoint(fake.url, max_concurrent_requests=1))
        async with running(settings(models=(one_place,))) as one, asyncio.TaskGroup() as group:
            streaming = group.create_task(post(one.url, STREAMED))
            await fake.arrived.wait()
            waiting = group.create_task(post(one.url, STREAMED))
            await until(lambda: one.services.admission.lines.total == 1)
            fake.models = ["other"]
            with capture_logs():
                await one.services.watch.look_round()
                _, body = await waiting
            streaming.cancel()

    assert told(body) == "upstream_failed"


async def test_who_waits_behind_a_stream_that_is_lost_never_gets_another_models_answer() -> None:
    cut = asyncio.Event()

    async def lost(request: web.Request) -> web.StreamResponse:
        response = await open_event_stream(request)
        await response.write(STREAM[0])
        await cut.wait()
        return await hang_up(request)

    async with fake_endpoint(lost, models=["smol"]) as fake:
        one_place = model(endpoint(fake.url, max_concurrent_requests=1))
        async with running(settings(models=(one_place,))) as one, asyncio.TaskGroup() as group:
            with capture_logs():
                group.create_task(post(one.url, STREAMED))
                await fake.arrived.wait()
                waiting = group.create_task(post(one.url, STREAMED))
                await until(lambda: one.services.admission.lines.total == 1)
                fake.models, fake.script = ["other"], WELL
                cut.set()
                _, body = await waiting
                response, _ = await post(one.url, BODY)

    assert told(body) == "upstream_failed"
    assert (response.status, len(fake.seen)) == (502, 1)
