from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from meshnet_common.edge.remote_files import (
    RemoteFiles,
    RemoteFolder,
    SourceChangedError,
    SourceError,
    SourceFileMissingError,
    SourceRefusedError,
    SourceUnreachableError,
    open_session,
)
from meshnet_common.edge.serving import listening
from tests.weights import SmallMirror, mirror_of

CONTENT = bytes(range(256)) * 300
FILES = {"a b#c": CONTENT}


@asynccontextmanager
async def reading(
    files: dict[str, bytes] | None = None,
) -> AsyncIterator[tuple[RemoteFiles, SmallMirror]]:
    async with mirror_of(FILES if files is None else files) as mirror, open_session() as session:
        yield RemoteFiles(session, RemoteFolder("the mirror", f"{mirror.url}/")), mirror


async def read(files: RemoteFiles, start: int, end: int) -> bytes:
    content = b""
    async for offset, chunk in files.stream("a b#c", start, end, len(CONTENT)):
        assert CONTENT[offset : offset + len(chunk)] == chunk
        content += chunk
    return content


async def test_a_range_costs_its_bytes() -> None:
    async with reading() as (files, mirror):
        assert await read(files, 1000, 3000) == CONTENT[1000:3000]
        assert mirror.sent_bytes == 2000


async def test_a_start_tells_the_size_of_all_of_it() -> None:
    async with reading() as (files, mirror):
        for mirror.ignores_ranges in (False, True):
            start = await files.read_start("a b#c", 100)
            assert (start.content, start.file_bytes) == (CONTENT[:100], len(CONTENT))


async def test_a_small_file_is_read_whole_and_a_missing_one_is_none() -> None:
    async with reading() as (files, _):
        assert await files.read_small("a b#c", len(CONTENT)) == CONTENT
        assert await files.read_small("nothing", 10) is None
        with pytest.raises(SourceChangedError, match="longer than 10 bytes"):
            await files.read_small("a b#c", 10)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, SourceRefusedError),
        (403, SourceRefusedError),
        (404, SourceFileMissingError),
        (416, SourceChangedError),
        (418, SourceRefusedError),
        (429, SourceUnreachableError),
        (500, SourceUnreachableError),
        (503, SourceUnreachableError),
    ],
)
async def test_a_status_says_whether_another_try_is_worth_it(
    status: int, error: type[SourceError]
) -> None:
    async with reading() as (files, mirror):
        mirror.statuses = [status]
        with pytest.raises(error, match=f"the mirror: a b#c: status {status}"):
            await read(files, 0, 10)


async def test_a_server_that_is_not_there_is_unreachable() -> None:
    async with open_session() as session:
        files = RemoteFiles(session, RemoteFolder("nowhere", "http://127.0.0.1:9/"))
        with pytest.raises(SourceUnreachableError, match="nowhere: x: Cannot connect"):
            await files.read_small("x", 10)


async def test_a_compressed_answer_is_refused() -> None:
    async with reading() as (files, mirror):
        mirror.extra_headers = {"Content-Encoding": "gzip"}
        with pytest.raises(SourceRefusedError, match="turn that off"):
            await read(files, 0, 10)


async def test_a_weak_version_is_no_reason_to_refuse() -> None:
    async with reading() as (files, mirror):
        mirror.etag = 'W/"2"'
        chunks = files.stream("a b#c", 0, 10, len(CONTENT), '"1"')
        assert [chunk async for chunk in chunks] == [(0, CONTENT[:10])]


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/{name}", answer)
    async with listening(app, "127.0.0.1", 0) as url:
        yield f"{url}/"


async def test_a_token_goes_to_its_own_hub_and_not_where_that_redirects() -> None:
    seen: list[tuple[str | None, str | None]] = []

    async def store(request: web.Request) -> web.StreamResponse:
        seen.append((request.headers.get("Authorization"), request.headers.get("Range")))
        headers = {"Content-Range": "bytes 5-9/10"}
        return web.Response(status=206, body=b"56789", headers=headers)

    async with answering(store) as store_url:

        async def redirect(request: web.Request) -> web.StreamResponse:
            seen.append((request.headers.get("Authorization"), request.headers.get("Range")))
            raise web.HTTPFound(f"{store_url}signed")

        async with answering(redirect) as hub_url, open_session() as session:
            folder = RemoteFolder("hub", hub_url, {"Authorization": "Bearer secret"})
            chunks = RemoteFiles(session, folder).stream("f", 5, 10, 10)
            assert [chunk async for chunk in chunks] == [(5, b"56789")]
    assert seen == [("Bearer secret", "bytes=5-9"), (None, "bytes=5-9")]
