import asyncio

import pytest
from aiohttp import hdrs, web

from meshnet_common.edge.clock import SteadyClock
from meshnet_common.edge.forwarding import upstream_session
from meshnet_common.edge.serving import listening
from meshnet_gateway.calibration.knee import Level, Unusable, find_knee
from meshnet_gateway.calibration.ramp import Plan, Ramp
from meshnet_gateway.config.settings import Endpoint, Secret
from tests.common.edge.upstreams import JSON, LOOPBACK, NOBODY, upstream

ANSWER = b'{"usage": {"completion_tokens": 5}}'
AT_ONCE = 0.0
"""So each of a level's requests is sent once."""


async def answer(_request: web.Request) -> web.Response:
    return web.Response(body=ANSWER, headers=JSON)


async def levels_at(url: str, most: int = 8, **endpoint: object) -> list[Level]:
    target = Endpoint(base_url=url, gpu_group="gpu", **endpoint)  # type: ignore[arg-type]
    plan = Plan("m", "chat", target, level_seconds=AT_ONCE, most=most)
    async with asyncio.timeout(10), upstream_session() as session:
        told: list[Level] = []
        levels = await Ramp(session, SteadyClock(), plan).run(told.append)
    assert told == levels
    return levels


async def test_a_level_has_as_many_requests_in_flight_as_it_says() -> None:
    meeting = asyncio.Barrier(2)

    async def together(request: web.Request) -> web.Response:
        if len(server.bodies) > 2:  # The first warms up, the second is level 1.
            await meeting.wait()
        return await answer(request)

    async with upstream(together) as server:
        levels = await levels_at(server.url, most=2)

    assert [level.concurrency for level in levels] == [1, 2]
    assert all(level.throughput > 0 and not level.failures for level in levels)
    assert len(server.bodies) == 1 + 1 + 2


async def test_answers_that_fail_are_counted_apart() -> None:
    async def overloaded(request: web.Request) -> web.Response:
        if len(server.bodies) > 4:
            raise web.HTTPServiceUnavailable
        return await answer(request)

    async with upstream(overloaded) as server, upstream_session() as session:
        plan = Plan("m", "chat", Endpoint(base_url=server.url, gpu_group="gpu"), AT_ONCE)
        level = await Ramp(session, SteadyClock(), plan).measure(6)

    assert (level.concurrency, level.failures) == (6, 2)
    assert level.throughput > 0


@pytest.mark.parametrize("body", [b"nonsense", b"{}"])
async def test_an_answer_that_is_none_is_a_failure(body: bytes) -> None:
    async def other(_request: web.Request) -> web.Response:
        return web.Response(body=body, headers=JSON)

    async with upstream(other) as server:
        assert find_knee(await levels_at(server.url)) == Unusable()


async def test_an_endpoint_that_is_not_there_is_told_after_one_try() -> None:
    (level,) = await levels_at(NOBODY)

    assert (level.concurrency, level.failures) == (1, 1)


async def test_the_endpoints_key_is_sent() -> None:
    async with upstream(answer) as server:
        await levels_at(server.url, most=1, api_key=Secret("sk"))

    assert {request.headers[hdrs.AUTHORIZATION] for request in server.seen} == {"Bearer sk"}


async def test_what_waits_inside_the_endpoint_is_seen_while_a_level_runs() -> None:
    looked = asyncio.Event()

    async def metrics(_request: web.Request) -> web.Response:
        looked.set()
        return web.Response(
            text="# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting 3\n"
        )

    async def slow(request: web.Request) -> web.Response:
        if len(server.bodies) > 1:
            await looked.wait()
        return await answer(request)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    async with upstream(slow) as server, listening(app, LOOPBACK, 0) as page:
        levels = await levels_at(server.url, most=1, metrics_url=f"{page}/metrics")

    assert [level.waiting for level in levels] == [3]
