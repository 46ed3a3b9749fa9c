import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from aiohttp import web

from meshnet_common.edge.http import new_application
from meshnet_common.edge.serving import listening
from meshnet_worker.transport import dialling
from meshnet_worker.transport.dialling import (
    BACK_OFF_SECONDS,
    DIAL_SECONDS,
    Dialling,
    UnreachableError,
)

QUERY = {"class": "interactive", "worker_id": "w1"}


@asynccontextmanager
async def dialler() -> AsyncIterator[Dialling]:
    one = Dialling(1000)
    try:
        yield one
    finally:
        await one.close()


class Answers:
    """Answers dials with the given statuses, then opens links; counts them all."""

    def __init__(self, *statuses: int) -> None:
        self._statuses = list(statuses)
        self.dials: list[dict[str, str]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.dials.append(dict(request.query))
        if self._statuses:
            return web.Response(status=self._statuses.pop(0))
        websocket = web.WebSocketResponse()
        await websocket.prepare(request)
        await websocket.send_bytes(b"hello")
        async for _ in websocket:
            pass
        return websocket


@asynccontextmanager
async def answering(*statuses: int) -> AsyncIterator[tuple[Answers, str]]:
    app, answers = new_application(), Answers(*statuses)
    app.router.add_get("/link", answers.answer)
    async with listening(app, "127.0.0.1", 0) as url:
        yield answers, url


async def test_a_dial_says_who_comes_and_what_for() -> None:
    async with answering() as (answers, url), dialler() as one:
        websocket = await one.dial(url, QUERY)
        assert await websocket.receive_bytes() == b"hello"
        assert answers.dials == [QUERY]
        await websocket.close()


async def test_a_refused_dial_is_tried_again_before_it_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries = 0

    def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tries
        tries += 1
        writer.close()

    monkeypatch.setattr(dialling, "BACK_OFF_SECONDS", (0.0, 0.0, 0.0))
    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server, dialler() as one:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(UnreachableError, match="cannot be reached"):
            await one.dial(f"http://127.0.0.1:{port}", QUERY)
        # aiohttp itself asks twice where the other side hangs up.
        assert tries >= 4


async def test_nobody_at_all_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialling, "BACK_OFF_SECONDS", (0.0,))
    async with dialler() as one:
        with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1"):
            await one.dial("http://127.0.0.1:1", QUERY)


def test_back_off_doubles_and_ends_before_a_dial_that_hangs_would() -> None:
    assert all(a < b <= 2 * a for a, b in pairwise(BACK_OFF_SECONDS))
    assert sum(BACK_OFF_SECONDS) == pytest.approx(1.5)
    assert sum(BACK_OFF_SECONDS) < DIAL_SECONDS


async def test_a_dial_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    writers: list[asyncio.StreamWriter] = []

    def hang(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    monkeypatch.setattr(dialling, "DIAL_SECONDS", 0.1)
    async with await asyncio.start_server(hang, "127.0.0.1", 0) as server, dialler() as one:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(UnreachableError, match="did not answer"):
            await one.dial(f"http://127.0.0.1:{port}", QUERY)
        for writer in writers:
            writer.close()


@pytest.mark.parametrize("status", [200, 404, 503])
async def test_what_answers_but_is_no_worker_is_not_asked_again(status: int) -> None:
    async with answering(status) as (answers, url), dialler() as one:
        with pytest.raises(UnreachableError):
            await one.dial(url, QUERY)
        assert len(answers.dials) == 1


@pytest.mark.parametrize("url", ["", "nonsense", "http://", "http://[::1", "http://a b", "ftp://x"])
async def test_an_address_that_is_none_is_unreachable(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialling, "BACK_OFF_SECONDS", ())
    async with dialler() as one:
        with pytest.raises(UnreachableError):
            await one.dial(url, QUERY)


async def test_a_worker_that_hangs_up_gives_up_what_it_still_dials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialling, "BACK_OFF_SECONDS", (0.0,) * 1000)
    one = Dialling(1000)
    async with asyncio.TaskGroup() as tasks:
        dial = tasks.create_task(refused(one))
        await asyncio.sleep(0)
        await one.close()
    assert "dials no more" in dial.result()


async def refused(one: Dialling) -> str:
    with pytest.raises(UnreachableError) as caught:
        await one.dial("http://127.0.0.1:1", QUERY)
    return str(caught.value)
