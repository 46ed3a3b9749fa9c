import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from meshnet_common.edge.forwarding import UpstreamUnreachableError, upstream_session
from meshnet_common.edge.serving import listening
from meshnet_gateway import pages
from meshnet_gateway.pages import NoSignOfLifeError, get_page
from tests.common.edge.upstreams import LOOPBACK, NOBODY, Script


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/health", script)
    async with listening(app, LOOPBACK, 0) as url:
        yield f"{url}/health"


async def page(request: web.Request) -> web.Response:
    return web.Response(status=503, text=request.headers["x-asked"])


async def test_a_page_comes_whatever_its_status_says() -> None:
    async with serving(page) as url, upstream_session() as session:
        answer = await get_page(session, url, {"x-asked": "so"})
    assert (answer.status, answer.body) == (503, b"so")


@pytest.mark.parametrize("url", [NOBODY, "http://a..b/health"])
async def test_a_server_that_is_not_there_has_no_page(url: str) -> None:
    async with upstream_session() as session:
        with pytest.raises(UpstreamUnreachableError) as caught:
            await get_page(session, url)

    # Its host has said so, or there is none.
    assert not isinstance(caught.value, NoSignOfLifeError)


@pytest.mark.parametrize("number", [errno.EHOSTUNREACH, errno.ENETUNREACH])
async def test_a_host_that_has_gone_gives_no_sign_of_life(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_args: object, **_kwargs: object) -> None:
        raise OSError(number, "gone")

    async with upstream_session() as session:
        monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", fail)
        with pytest.raises(NoSignOfLifeError):
            await get_page(session, "http://127.0.0.1:9")


async def test_a_page_is_bounded_in_time_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs(_request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async def long(_request: web.Request) -> web.Response:
        return web.Response(body=b"x" * 11)

    monkeypatch.setattr(pages, "PAGE_SECONDS", 0.05)
    monkeypatch.setattr(pages, "MOST_PAGE_BYTES", 10)
    for behaviour in (hangs, long):
        async with serving(behaviour) as url, upstream_session() as session:
            with pytest.raises(UpstreamUnreachableError) as caught:
                await get_page(session, url)
        assert isinstance(caught.value, NoSignOfLifeError) == (behaviour is hangs)
