"""Bodies of requests in memory: bounded together, wherever the requests are."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
from structlog.testing import capture_logs

from meshnet_common.edge.http import MAX_BODY_BYTES
from tests.common.edge.upstreams import JSON, Script, endless, hang_up, post
from tests.gateway.answering.test_attempts import code_of
from tests.gateway.answering.test_delivery import CHAT, one_place
from tests.gateway.fake_endpoint import STREAM, STREAMED, WELL, fake_endpoint
from tests.gateway.running import until


@pytest.mark.parametrize("script", [endless(STREAM[0]), hang_up], ids=["under way", "held"])
async def test_bodies_are_refused_beyond_their_bound_wherever_the_others_are(
    script: Script,
) -> None:
    bound = 3 * len(STREAMED)
    async with (
        fake_endpoint(script) as fake,
        one_place(fake, max_total_body_bytes=bound, ack_after_ms=60_000) as one,
        asyncio.TaskGroup() as group,
    ):
        with capture_logs():
            there = [group.create_task(post(one.url, STREAMED)) for _ in range(3)]
            await until(lambda: one.services.bodies.held_bytes == bound)
            response, body = await post(one.url, STREAMED)
            there.pop().cancel()
            await until(lambda: one.services.bodies.held_bytes < bound)
            fake.script = WELL
            there.append(group.create_task(post(one.url, STREAMED)))
            await until(lambda: one.services.bodies.held_bytes == bound)
            for task in there:
                task.cancel()
            await until(lambda: not one.in_flight)

    assert (response.status, code_of(body)) == (503, "overloaded")
    assert int(response.headers["Retry-After"]) > 0


async def test_a_body_that_does_not_say_its_length_counts_as_the_longest_until_it_is_read() -> None:
    more = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield STREAMED[:5]
        await more.wait()
        yield STREAMED[5:]

    async with fake_endpoint() as fake, one_place(fake) as one, aiohttp.ClientSession() as session:
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(session.post(one.url + CHAT, data=slowly(), headers=JSON))
            await until(lambda: one.services.bodies.held_bytes == MAX_BODY_BYTES)
            more.set()
            (await sending).close()
        await until(lambda: not one.in_flight)
