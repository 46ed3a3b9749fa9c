"""Whoever falls silent with requests: they go elsewhere or end, and who is only slow keeps them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from meshnet_common.edge.http import open_event_stream
from meshnet_common.openai.sse import KEEP_ALIVE_COMMENT
from meshnet_gateway.config.settings import Peer, Settings
from tests.common.edge.upstreams import post, whole
from tests.gateway.answering.test_attempts import told
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

WHOLE_STREAM = b"".join(STREAM)
SOUND = whole(b'{"n": 1}')


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshnet_gateway.pages.PAGE_SECONDS", 0.1)
    monkeypatch.setattr("meshnet_gateway.serving.watch.WATCH_SECONDS", 0.02)
    monkeypatch.setattr("meshnet_gateway.serving.pulse.APART_SECONDS", 0.0)


def through(*fakes: FakeEndpoint, **fields: Any) -> Settings:
    named = model(*(endpoint(fake.url) for fake in fakes), **fields)
    return settings(models=(named,), ack_after_ms=60_000)


@asynccontextmanager
async def frozen_with_a_request(
    fake: FakeEndpoint, known: Settings, body: bytes
) -> AsyncIterator[tuple[Running, "asyncio.Task[tuple[Any, bytes]]"]]:
    """Freeze one that has just got a request; nobody waits for long."""
    with capture_logs():
        async with running(known) as one, asyncio.timeout(10), asyncio.TaskGroup() as group:
            fake.is_frozen = True
            asking = group.create_task(post(one.url, body))
            await until(lambda: bool(fake.seen))
            yield one, asking


@pytest.mark.parametrize("body", [BODY, STREAMED])
async def test_a_request_at_one_that_is_frozen_is_answered_by_another(body: bytes) -> None:
    async with fake_endpoint() as fake, fake_endpoint(SOUND) as sound:
        sound.script = WELL if body == STREAMED else SOUND
        known = through(fake, sound)
        async with frozen_with_a_request(fake, known, body) as (_, asking):
            response, answer = await asking

    assert response.status == 200
    assert answer == (WHOLE_STREAM if body == STREAMED else b'{"n": 1}')
    assert (len(fake.seen), len(sound.seen)) == (1, 1)


async def test_a_stream_that_has_only_shown_life_is_answered_by_another() -> None:
    async with fake_endpoint() as fake, fake_endpoint() as sound:

        async def promises(request: web.Request) -> web.StreamResponse:
            response = await open_event_stream(request)
            await response.write(KEEP_ALIVE_COMMENT)
            fake.is_frozen = True
            await asyncio.Event().wait()
            return response

        fake.script = promises
        with capture_logs():
            async with running(through(fake, sound)) as one:
                _, body = await post(one.url, STREAMED)

    assert body == KEEP_ALIVE_COMMENT + WHOLE_STREAM


async def test_a_stream_that_stands_still_at_one_that_is_frozen_ends_with_an_error() -> None:
    async with fake_endpoint() as fake, fake_endpoint() as sound:

        async def stops(request: web.Request) -> web.StreamResponse:
            response = await open_event_stream(request)
            await response.write(STREAM[0])
            fake.is_frozen = True
            await asyncio.Event().wait()
            return response

        fake.script = stops
        with capture_logs():
            for known in (through(fake, sound), through(fake)):
                fake.is_frozen = False
                async with running(known) as one:
                    _, body = await post(one.url, STREAMED)
                    await until(lambda one=one: not one.in_flight)  # type: ignore[misc]
                    assert body.startswith(STREAM[0])
                    assert (told(body), len(sound.seen)) == ("worker_lost", 0)


@pytest.mark.parametrize("models", [["smol"], None], ids=["lists", "has no list"])
async def test_one_that_is_slow_and_alive_keeps_its_requests(models: list[str] | None) -> None:
    gate = asyncio.Event()
    async with (
        fake_endpoint(behind(gate, SOUND), models=models) as slow,
        fake_endpoint(SOUND) as other,
        running(through(slow, other)) as one,
        asyncio.TaskGroup() as group,
    ):
        asking = group.create_task(post(one.url, BODY))
        await slow.arrived.wait()
        looks = len(slow.looks)
        await until(lambda: len(slow.looks) > looks + 5)
        gate.set()
        response, _ = await asking

    assert (response.status, len(slow.seen), len(other.seen)) == (200, 1, 0)


async def test_one_that_refuses_looks_while_it_drains_keeps_its_requests() -> None:
    gate = asyncio.Event()
    async with fake_endpoint(behind(gate, SOUND)) as fake, fake_endpoint(SOUND) as other:
        with capture_logs():
            async with running(through(fake, other)) as one, asyncio.TaskGroup() as group:
                asking = group.create_task(post(one.url, BODY))
                await fake.arrived.wait()
                fake.breaks_looks_off = True
                looks = len(fake.looks)
                await until(lambda: len(fake.looks) > looks + 5)
                gate.set()
                response, _ = await asking

    assert (response.status, len(fake.seen), len(other.seen)) == (200, 1, 0)


async def test_one_that_nobody_can_stand_in_for_is_waited_for() -> None:
    async with fake_endpoint(SOUND) as fake:
        known = through(fake)
        async with frozen_with_a_request(fake, known, BODY) as (one, asking):
            state = next(iter(one.services.registry.configured[0]))
            await until(lambda: state.pulse.is_silent)
            fake.is_frozen = False
            fake.thawed.set()
            response, _ = await asking

    assert (response.status, len(fake.seen)) == (200, 1)


async def test_one_that_does_one_thing_at_a_time_is_known_for_it_after_an_answer() -> None:
    gates = asyncio.Event(), asyncio.Event()
    async with fake_endpoint(behind(gates[0], SOUND)) as busy, fake_endpoint(SOUND) as other:
        with capture_logs():
            async with running(through(busy)) as one, asyncio.TaskGroup() as group:
                state = next(iter(one.services.registry.configured[0]))
                busy.is_deaf = True
                first = group.create_task(post(one.url, BODY))
                await until(lambda: state.pulse.is_silent)
                gates[0].set()
                await first
                # It has heard the looks by now.
                busy.is_deaf = False
                busy.thawed.set()
                await until(lambda: not state.pulse.in_question)

                busy.thawed.clear()
                busy.script = behind(gates[1], SOUND)
                one.services.apply(through(busy, other))
                await post(one.url, BODY)  # The other one's turn.
                second = group.create_task(post(one.url, BODY))
                await until(lambda: len(busy.seen) == 2)
                busy.is_deaf = True
                looks = len(busy.looks)
                await until(lambda: len(busy.looks) > looks + 5)
                gates[1].set()
                response, _ = await second

    assert (response.status, len(busy.seen), len(other.seen)) == (200, 2, 1)


async def test_a_head_worker_that_is_frozen_is_left_for_another() -> None:
    async with (
        fake_endpoint(SOUND) as one_head,
        fake_endpoint(SOUND) as other_head,
        mesh(smol=[one_head.url, other_head.url]) as one_mesh,
        frozen_with_a_request(one_head, settings(meshes=(one_mesh.url,)), BODY) as (_, asking),
    ):
        response, _ = await asking

    assert (response.status, len(other_head.seen)) == (200, 1)


async def test_a_peer_that_is_frozen_is_left_for_another() -> None:
    async with fake_endpoint(SOUND) as first, fake_endpoint(SOUND) as second:
        peers = (
            Peer(id="first", base_url=first.url),
            Peer(id="second", base_url=second.url, priority=1),
        )
        known = settings(peers=peers)
        async with frozen_with_a_request(first, known, BODY) as (_, asking):
            response, _ = await asking

    assert (response.status, len(second.seen)) == (200, 1)


async def test_an_endpoint_that_is_frozen_is_left_for_a_peer() -> None:
    async with fake_endpoint(SOUND) as fake, fake_endpoint(SOUND) as there:
        peers = (Peer(id="there", base_url=there.url),)
        known = settings(models=(model(endpoint(fake.url)),), peers=peers)
        async with frozen_with_a_request(fake, known, BODY) as (_, asking):
            response, _ = await asking

    assert (response.status, len(there.seen)) == (200, 1)


async def test_an_embedder_that_is_frozen_is_left_for_its_fallback() -> None:
    embedding = whole(b'{"data": [{"embedding": [1, 2]}]}')
    async with fake_endpoint(embedding) as first, fake_endpoint(embedding) as second:
        named = model(endpoint(first.url), kind="embedding", fallback=endpoint(second.url))
        with capture_logs():
            async with running(settings(models=(named,))) as one, asyncio.timeout(10):
                first.is_frozen = True
                response, _ = await post(one.url, BODY, path="/v1/embeddings")

    assert (response.status, len(first.seen), len(second.seen)) == (200, 1, 1)


async def test_those_that_do_one_thing_at_a_time_do_not_pass_a_request_to_and_fro() -> None:
    gate = asyncio.Event()
    async with (
        fake_endpoint(behind(gate, SOUND)) as one_server,
        fake_endpoint(behind(gate, SOUND)) as other_server,
    ):
        with capture_logs():
            async with running(through(one_server, other_server)) as one, asyncio.timeout(10):
                one_server.is_deaf = True
                async with asyncio.TaskGroup() as group:
                    asking = group.create_task(post(one.url, BODY))
                    await until(lambda: len(other_server.seen) == 1)
                    # The first one has lost its request, and hears again.
                    one_server.is_deaf, other_server.is_deaf = False, True
                    one_server.thawed.set()
                    looks = len(other_server.looks)
                    await until(lambda: len(other_server.looks) > looks + 5)
                    gate.set()
                response, _ = await asking

    assert (response.status, len(one_server.seen), len(other_server.seen)) == (200, 1, 1)
