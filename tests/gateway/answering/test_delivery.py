"""What clients see: acknowledgement, positions, signs of life."""

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from meshnet_common.openai.errors import model_unavailable
from meshnet_common.openai.sse import KEEP_ALIVE_COMMENT, accepted_comment, position_comment
from tests.common.edge.upstreams import JSON, endless, hang_up, post, whole
from tests.gateway.answering.test_attempts import code_of
from tests.gateway.fake_endpoint import (
    BODY,
    STREAM,
    STREAMED,
    WELL,
    FakeEndpoint,
    behind,
    fake_endpoint,
)
from tests.gateway.fake_mesh import mesh
from tests.gateway.running import Running, endpoint, model, running, settings, until

CHAT = "/v1/chat/completions"


@asynccontextmanager
async def asking(url: str) -> AsyncIterator[aiohttp.ClientResponse]:
    """Ask for a stream and read it as one likes."""
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session,
        session.post(url + CHAT, data=io.BytesIO(STREAMED), headers=JSON) as response,
    ):
        yield response


@asynccontextmanager
async def one_place(fake: FakeEndpoint, **fields: Any) -> AsyncIterator[Running]:
    """Serve a model that is answered once at a time."""
    known = model(endpoint(fake.url, max_concurrent_requests=1))
    async with running(settings(models=(known,), **fields)) as one:
        yield one


async def test_the_second_of_two_streams_hears_its_position_and_then_gets_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("meshnet_common.edge.client_stream.POSITION_SECONDS", 0.001)
    gate = asyncio.Event()
    async with (
        fake_endpoint(behind(gate, WELL)) as fake,
        one_place(fake, keep_alive_seconds=0.02) as one,
        asking(one.url) as first,
    ):
        assert await first.content.readline() == accepted_comment(0)
        await fake.arrived.wait()
        async with asking(one.url) as second, asking(one.url) as third:
            assert await second.content.readline() == accepted_comment(1)
            assert await third.content.readline() == accepted_comment(2)
            assert await second.content.readline() == KEEP_ALIVE_COMMENT
            gate.set()
            rests = [await response.content.read() for response in (first, second, third)]

    assert fake.most_in_flight == 1
    assert all(rest.endswith(b"".join(STREAM)) for rest in rests)
    assert position_comment(1) in rests[2] or position_comment(0) in rests[2]
    assert not one.in_flight


async def test_who_does_not_stream_hears_nothing_before_its_answer() -> None:
    gate = asyncio.Event()
    async with (
        fake_endpoint(behind(gate, whole(b'{"n": 1}'))) as fake,
        one_place(fake) as one,
        asyncio.TaskGroup() as group,
    ):
        both = [group.create_task(post(one.url, BODY)) for _ in range(2)]
        await until(lambda: one.services.admission.lines.total == 1)
        gate.set()
        assert [(await task)[1] for task in both] == [b'{"n": 1}'] * 2


async def test_a_client_that_leaves_the_line_holds_nobody_up() -> None:
    async with (
        fake_endpoint(endless(STREAM[0])) as fake,
        one_place(fake) as one,
        asyncio.TaskGroup() as group,
    ):
        streaming = group.create_task(post(one.url, STREAMED))
        await fake.arrived.wait()
        leaving = group.create_task(post(one.url, STREAMED))
        await until(lambda: one.services.admission.lines.total == 1)
        leaving.cancel()
        await until(lambda: one.services.admission.lines.total == 0)
        streaming.cancel()
        await until(lambda: not one.in_flight)

    assert len(fake.seen) == 1


async def test_a_client_that_leaves_while_it_is_held_leaves_nothing_behind() -> None:
    with capture_logs():
        async with (
            fake_endpoint(hang_up) as fake,
            one_place(fake) as one,
            asyncio.TaskGroup() as group,
        ):
            held = group.create_task(post(one.url, STREAMED))
            await until(lambda: len(fake.seen) >= 2)
            held.cancel()
            await until(lambda: not one.in_flight)


async def test_one_too_many_in_line_is_refused() -> None:
    async with (
        fake_endpoint(endless(STREAM[0])) as fake,
        one_place(fake, max_waiting=1, ack_after_ms=60_000) as one,
        asyncio.TaskGroup() as group,
    ):
        streaming = group.create_task(post(one.url, STREAMED))
        await fake.arrived.wait()
        waiting = group.create_task(post(one.url, STREAMED))
        await until(lambda: one.services.admission.lines.total == 1)
        response, body = await post(one.url, STREAMED)
        for task in (streaming, waiting):
            task.cancel()

    assert (response.status, code_of(body)) == (503, "overloaded")


async def test_a_mesh_that_lost_its_head_workers_for_a_moment_is_waited_for() -> None:
    async with fake_endpoint(hang_up) as head, mesh(smol=[head.url]) as one_mesh:
        known = settings(meshes=(one_mesh.url,), hold_seconds=10.0)
        async with running(known) as one, asyncio.TaskGroup() as group:
            with capture_logs():
                held = group.create_task(post(one.url, STREAMED))
                await until(lambda: len(head.seen) == 1)
                one_mesh.refusals["smol"] = model_unavailable("Layers are missing.", 5)
                before = len(one_mesh.asked)
                await until(lambda: len(one_mesh.asked) > before + 1)
                head.script = WELL
                del one_mesh.refusals["smol"]
                _, body = await held

    assert body.endswith(b"".join(STREAM))


async def test_what_begins_alike_goes_where_it_went_before() -> None:
    async with fake_endpoint(whole(b"{}")) as first, fake_endpoint(whole(b"{}")) as second:
        warm = model(endpoint(first.url), endpoint(second.url), balance="prefix")
        async with running(settings(models=(warm,))) as one:
            for user in "abcdefgh":
                before = len(first.seen)
                for _ in range(3):
                    await post(one.url, b'{"model": "smol", "user": "%s"}' % user.encode())
                assert len(first.seen) - before in {0, 3}

    assert len(first.seen) + len(second.seen) == 24
    assert first.seen
    assert second.seen
