"""A caller that finds an upstream dead ends what comes from it, as if it had broken off."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web

from meshnet_common.edge.forwarding import (
    ForwardedAnswer,
    Target,
    UpstreamError,
    WholeAnswer,
    upstream_session,
)
from meshnet_common.edge.http import new_application
from meshnet_common.edge.serving import listening
from meshnet_common.openai.sse import DONE_EVENT, KEEP_ALIVE_COMMENT, data_event
from tests.common.edge.upstreams import LOOPBACK, Script, Upstream, endless, post, upstream, whole

EVENT = data_event(b"{}")


async def half(request: web.Request) -> web.StreamResponse:
    """Begin a whole answer that never ends."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    await response.write(b'{"half')
    await asyncio.Event().wait()
    return response


@dataclass
class Seen:
    """The answer of a proxy, and whether anything of it has come that may be passed on."""

    answers: list[ForwardedAnswer] = field(default_factory=list)
    something: asyncio.Event = field(default_factory=asyncio.Event)

    def saw_events(self, _data: bytes) -> None:
        self.something.set()

    def saw_whole(self, _answer: WholeAnswer) -> None:
        self.something.set()


@asynccontextmanager
async def proxy(url: str, seen: Seen) -> AsyncIterator[str]:
    async def handle(request: web.Request) -> web.StreamResponse:
        answer = ForwardedAnswer(request)
        seen.answers.append(answer)
        try:
            target = Target(f"{url}/v1/chat/completions", b"{}")
            return await answer.forward(session, target, seen)
        except UpstreamError as error:
            return await answer.give_up(error)

    app = new_application()
    app.router.add_post("/v1/{api:.+}", handle)
    async with upstream_session() as session, listening(app, LOOPBACK, 0) as own_url:
        yield own_url


@asynccontextmanager
async def asked(
    script: Script, seen: Seen
) -> AsyncIterator[tuple[Upstream, asyncio.Task[tuple[aiohttp.ClientResponse, bytes]]]]:
    """Have a proxy before this upstream asked; it has ten seconds."""
    async with (
        upstream(script) as one,
        proxy(one.url, seen) as url,
        asyncio.timeout(10),
        asyncio.TaskGroup() as group,
    ):
        yield one, group.create_task(post(url))


@pytest.mark.parametrize(
    ("script", "code"),
    [(endless(EVENT), b"worker_lost"), (endless(KEEP_ALIVE_COMMENT), b"upstream_failed")],
    ids=["in mid-stream", "before the first event"],
)
async def test_a_stream_that_is_hung_up_ends_with_an_error_event(
    script: Script, code: bytes
) -> None:
    seen = Seen()
    async with asked(script, seen) as (one, asking):
        await seen.something.wait()
        assert seen.answers[0].hang_up()
        response, body = await asking
        await one.left.wait()

    assert (response.status, code in body, body.endswith(DONE_EVENT)) == (200, True, True)


@pytest.mark.parametrize("script", [endless(), half], ids=["before any byte", "in mid-answer"])
async def test_an_answer_that_is_hung_up_before_anything_went_on_may_be_given_by_another(
    script: Script,
) -> None:
    seen = Seen()
    async with asked(script, seen) as (one, asking):
        await one.arrived.wait()
        while not seen.answers[0].hang_up():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.001)
        response, body = await asking
        await one.left.wait()

    assert (response.status, b"upstream_failed" in body) == (502, True)


async def test_before_anything_has_come_there_is_nothing_to_hang_up() -> None:
    gate, seen = asyncio.Event(), Seen()

    async def later(request: web.Request) -> web.StreamResponse:
        await gate.wait()
        return await whole(b"{}")(request)

    async with asked(later, seen) as (one, asking):
        await one.arrived.wait()
        assert not seen.answers[0].hang_up()
        gate.set()
        assert (await asking)[1] == b"{}"
