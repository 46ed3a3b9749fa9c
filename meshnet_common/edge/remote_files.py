"""Reads a folder of files on an HTTP server, whole or by ranges of bytes.

Nothing is believed: a server may ignore ranges, cut an answer short, or serve another file than
before. What is worth another try raises SourceUnreachableError, everything else is final.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import quote

import aiohttp
from aiohttp import hdrs

from meshnet_common.errors import MeshnetError
from meshnet_common.weights.errors import HeaderError
from meshnet_common.weights.headers import PREFIX_BYTES, header_bytes

CHUNK_BYTES = 1 << 20
FIRST_BYTES = 128 << 10
"""Most headers fit into this much, and cost one request."""
CONNECT_SECONDS = 30.0
SILENCE_SECONDS = 60.0

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_OK, _PARTIAL = 200, 206
_REFUSED = frozenset({401, 403, 407, 451})
_MISSING = frozenset({404, 410})
_BEYOND_THE_END = 416
_TRY_AGAIN = frozenset({408, 425, 429})


class SourceError(MeshnetError):
    """The source of the weights does not give them."""

    exit_status = 3


class SourceUnreachableError(SourceError):
    """The source of the weights cannot be reached."""


class SourceRefusedError(SourceError):
    """The source of the weights refuses to give them."""


class SourceFileMissingError(SourceError):
    """The source of the weights lacks a file."""


class SourceChangedError(SourceError):
    """The source of the weights serves another file than was expected."""


@dataclass(frozen=True, slots=True)
class RemoteFolder:
    """Where files are; `base_url` ends with a slash, `label` is how people call the place."""

    label: str
    base_url: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def url_of(self, name: str) -> str:
        return f"{self.base_url}{quote(name)}"


@dataclass(frozen=True, slots=True)
class FileStart:
    """The beginning of a file, and the size of all of it."""

    content: bytes
    file_bytes: int
    etag: str


def open_session() -> aiohttp.ClientSession:
    """Make a session that suits long downloads; proxies and netrc of the environment count."""
    return aiohttp.ClientSession(
        auto_decompress=False,
        trust_env=True,
        read_bufsize=CHUNK_BYTES,
        timeout=aiohttp.ClientTimeout(connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS),
    )


class RemoteFiles:
    """The files of one remote folder; every method raises SourceError."""

    def __init__(self, session: aiohttp.ClientSession, folder: RemoteFolder) -> None:
        self.folder = folder
        self._session = session

    async def read_small(self, name: str, most_bytes: int) -> bytes | None:
        """Read a whole file, None where there is none; one that is too long is refused unread."""
        content = bytearray()
        try:
            async with self._get(name) as response:
                async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                    content += chunk
                    if len(content) > most_bytes:
                        raise SourceChangedError(f"{name} is longer than {most_bytes} bytes.")
        except SourceFileMissingError:
            return None
        return bytes(content)

    async def read_start(self, name: str, wanted_bytes: int) -> FileStart:
        """Read the first bytes of a file, fewer if it is shorter."""
        content = bytearray()
        async with self._get(name, (0, wanted_bytes)) as response:
            file_bytes = _file_bytes(response)
            if file_bytes is None:
                raise SourceChangedError(f"{self._where(name)} does not tell the file's size.")
            async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                content += chunk
                if len(content) >= wanted_bytes:
                    break
        if len(content) < min(wanted_bytes, file_bytes):
            raise SourceUnreachableError(f"{self._where(name)}: the answer is cut short.")
        etag = response.headers.get(hdrs.ETAG, "")
        return FileStart(bytes(content[:wanted_bytes]), file_bytes, etag)

    async def read_header(self, name: str) -> FileStart:
        """Read the length and the JSON at the beginning of a safetensors file.

        Raises HeaderError before more is read than a header may have.
        """
        first = await self.read_start(name, FIRST_BYTES)
        try:
            length = header_bytes(first.content[:PREFIX_BYTES], first.file_bytes)
        except HeaderError as error:
            raise HeaderError(f"{self._where(name)}: {error.detail}") from error
        end = PREFIX_BYTES + length
        if end > len(first.content):
            first = await self.read_start(name, end)
        return FileStart(first.content[:end], first.file_bytes, first.etag)

    async def stream(
        self, name: str, start: int, end: int, file_bytes: int, etag: str = ""
    ) -> AsyncGenerator[tuple[int, bytes], None]:
        """Yield (offset, bytes) in order, from `start` on or from 0 if the server ignores ranges.

        It may end early or run over `end`; that is the reader's to notice. A file of another size
        or, where `etag` is known, of another version is refused.
        """
        async with self._get(name, (start, end)) as response:
            offset = self._first_offset(response, name, start, file_bytes)
            served = response.headers.get(hdrs.ETAG, etag)
            # A weak one may differ between two servers of one file.
            if etag and served != etag and not (etag + served).count("W/"):
                raise SourceChangedError(f"{self._where(name)}: its version is {served} now.")
            async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                yield offset, chunk
                offset += len(chunk)

    def _first_offset(
        self, response: aiohttp.ClientResponse, name: str, start: int, file_bytes: int
    ) -> int:
        served = _file_bytes(response)
        if served is not None and served != file_bytes:
            facts = f"it has {served} bytes, not {file_bytes}"
            raise SourceChangedError(f"{self._where(name)}: {facts}.")
        if response.status == _OK:
            return 0
        found = _CONTENT_RANGE.fullmatch(response.headers.get(hdrs.CONTENT_RANGE, ""))
        if found is None or int(found[1]) != start:
            facts = f"it answers {found[0] if found else 'no range'}, asked for from {start} on"
            raise SourceChangedError(f"{self._where(name)}: {facts}.")
        return start

    @asynccontextmanager
    async def _get(
        self, name: str, wanted: tuple[int, int] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {**self.folder.headers, hdrs.ACCEPT_ENCODING: "identity"}
        if wanted is not None:
            headers[hdrs.RANGE] = f"bytes={wanted[0]}-{wanted[1] - 1}"
        try:
            async with self._session.get(self.folder.url_of(name), headers=headers) as response:
                self._check(response, name)
                yield response
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise SourceUnreachableError(f"{self._where(name)}: {reason}.") from error

    def _check(self, response: aiohttp.ClientResponse, name: str) -> None:
        status = response.status
        where = f"{self._where(name)}: status {status}."
        if status in _REFUSED:
            raise SourceRefusedError(f"{where} Does it need a token, or terms to be accepted?")
        if status in _MISSING:
            raise SourceFileMissingError(where)
        if status == _BEYOND_THE_END:
            raise SourceChangedError(f"{where} The file is shorter than it was.")
        if status in _TRY_AGAIN or status >= 500:
            raise SourceUnreachableError(where)
        if status not in {_OK, _PARTIAL}:
            raise SourceRefusedError(where)
        if response.headers.get(hdrs.CONTENT_ENCODING, "identity") != "identity":
            raise SourceRefusedError(f"{where} It compresses what it serves; turn that off there.")

    def _where(self, name: str) -> str:
        return f"{self.folder.label}: {name}"


def _file_bytes(response: aiohttp.ClientResponse) -> int | None:
    """Tell the size of the whole file, if the answer does."""
    if response.status == _OK:
        return response.content_length
    found = _CONTENT_RANGE.fullmatch(response.headers.get(hdrs.CONTENT_RANGE, ""))
    return int(found[3]) if found and found[3] != "*" else None
