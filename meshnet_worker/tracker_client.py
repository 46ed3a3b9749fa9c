"""The Tracker's HTTP API as a Worker calls it: one method per call, no loops here."""

from collections.abc import Mapping
from typing import TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from meshnet_common.errors import MeshnetError
from meshnet_common.openai.errors import ApiError, ErrorBody
from meshnet_common.presets import ModelPreset
from meshnet_common.protocol.messages import (
    Directive,
    DirectiveList,
    DirectiveReport,
    Heartbeat,
    HeartbeatReply,
    HopFault,
    PresetAnswer,
    Registered,
    RegisterWorker,
    RenewRoute,
    RouteAnswer,
)
from meshnet_worker.tickets import KeySet, read_key_set

CALL_SECONDS = 10.0
MANIFEST_SECONDS = 60.0
UNAUTHORIZED = 401

_Answer = TypeVar("_Answer")


class TrackerUnreachableError(MeshnetError):
    """The Tracker cannot be reached."""

    exit_status = 6


class TrackerRefusedError(MeshnetError):
    """The Tracker refuses this Worker."""

    exit_status = 7


class WorkerTooSmallError(MeshnetError):
    """The memory that is lent fits no Layer of any model here."""

    exit_status = 5


class NotRegisteredError(MeshnetError):
    """The Tracker does not know this Worker any more."""


class TrackerClient:
    """Calls one Tracker; `url` is its base, without a path."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._registered: Registered | None = None
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def register(self, body: RegisterWorker) -> Registered:
        """Join the Mesh; raises WorkerTooSmallError, TrackerRefusedError or unreachable."""
        self._registered = None
        status, answer = await self._call("POST", "/v1/workers", body=body)
        if not _is_success(status):
            error = _error(status, answer)
            is_too_small = error.body.code == "insufficient_memory"
            raise (WorkerTooSmallError if is_too_small else TrackerRefusedError)(error.body.message)
        self._registered = self._read(answer, Registered)
        return self._registered

    async def heartbeat(self, body: Heartbeat) -> HeartbeatReply:
        answer = await self._own("POST", "/heartbeat", body=body)
        return self._read(answer, HeartbeatReply)

    async def directives(self, after: int, wait_seconds: float) -> tuple[Directive, ...]:
        """Wait for Rebalance Directives with a higher epoch."""
        query = {"after": str(after), "wait": str(wait_seconds)}
        answer = await self._own("GET", "/directives", query=query, extra_seconds=wait_seconds)
        return self._read(answer, DirectiveList).directives

    async def report(self, directive_id: str, body: DirectiveReport) -> None:
        await self._own("POST", f"/directives/{directive_id}", body=body)

    async def send_probe(self, body: bytes) -> None:
        """Send bytes that mean nothing, to measure the link."""
        await self._own("POST", "/link-probe", body=body)

    async def leave(self) -> None:
        """Say goodbye: the Tracker gives this Worker's Layers to others at once."""
        await self._own("DELETE", "")

    async def preset(self, name: str) -> ModelPreset:
        """Fetch a preset with its manifest, which is megabytes for a model of many experts."""
        path = f"/v1/presets/{quote(name, safe='')}"
        status, answer = await self._call("GET", path, extra_seconds=MANIFEST_SECONDS)
        if not _is_success(status):
            raise _error(status, answer)
        return self._read(answer, PresetAnswer).preset

    async def route(self, public_name: str, head: str, authorization: str | None) -> str:
        """Fetch a signed route that starts here; raises ApiError as the Tracker answered."""
        headers = {"Authorization": authorization} if authorization else {}
        path = f"/v1/route/{quote(public_name, safe='')}"
        status, answer = await self._call("GET", path, query={"head": head}, headers=headers)
        if not _is_success(status):
            raise _error(status, answer)
        return self._read(answer, RouteAnswer).ticket

    async def renew(
        self, ticket: str, avoid: frozenset[str], faults: tuple[HopFault, ...] = ()
    ) -> str:
        """Fetch a fresh ticket for a ticket's Session; raises ApiError as the Tracker answered."""
        body = RenewRoute(ticket=ticket, avoid=tuple(sorted(avoid)), faults=faults)
        status, answer = await self._call("POST", "/v1/route/renew", body=body)
        if not _is_success(status):
            raise _error(status, answer)
        return self._read(answer, RouteAnswer).ticket

    async def head_workers(self, public_name: str) -> tuple[str, ...]:
        """Ask for the URLs of a model's Head Workers; raises ApiError as the Tracker answered."""
        path = f"/v1/head-workers/{quote(public_name, safe='')}"
        status, answer = await self._call("GET", path)
        if not _is_success(status):
            raise _error(status, answer)
        return self._read(answer, _HeadWorkers).endpoints

    async def keys(self) -> KeySet:
        status, answer = await self._call("GET", "/v1/keys")
        if not _is_success(status):
            raise TrackerUnreachableError(f"{self.url}/v1/keys answers {status}.")
        return read_key_set(answer)

    def _read(self, answer: bytes, kind: type[_Answer]) -> _Answer:
        try:
            return msgspec.json.decode(answer, type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            facts = f"{self.url} answers what no Tracker would: {error}. Check --tracker."
            raise TrackerUnreachableError(facts) from error

    async def _own(
        self,
        method: str,
        path: str,
        *,
        body: msgspec.Struct | bytes | None = None,
        query: Mapping[str, str] | None = None,
        extra_seconds: float = 0.0,
    ) -> bytes:
        if self._registered is None:
            raise NotRegisteredError
        status, answer = await self._call(
            method,
            f"/v1/workers/{self._registered.worker_id}{path}",
            body=body,
            query=query,
            headers={"Authorization": f"Bearer {self._registered.token}"},
            extra_seconds=extra_seconds,
        )
        if status == UNAUTHORIZED:
            raise NotRegisteredError
        if not _is_success(status):
            raise _error(status, answer)
        return answer

    async def _call(
        self,
        method: str,
        path: str,
        *,
        body: msgspec.Struct | bytes | None = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        extra_seconds: float = 0.0,
    ) -> tuple[int, bytes]:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        try:
            async with self._session.request(
                method,
                f"{self.url}{path}",
                params=query,
                headers={**(headers or {}), "Content-Type": "application/json"},
                data=msgspec.json.encode(body) if isinstance(body, msgspec.Struct) else body,
                timeout=aiohttp.ClientTimeout(total=CALL_SECONDS + extra_seconds),
            ) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            advice = "Check --tracker, and that the Tracker runs."
            reason = str(error) or type(error).__name__
            raise TrackerUnreachableError(f"{self.url}: {reason}. {advice}") from error


class _HeadWorkers(msgspec.Struct):
    endpoints: tuple[str, ...]


class _Envelope(msgspec.Struct):
    error: ErrorBody


def _is_success(status: int) -> bool:
    return 200 <= status < 300


def _error(status: int, answer: bytes) -> ApiError:
    try:
        body = msgspec.json.decode(answer, type=_Envelope).error
    except msgspec.DecodeError:
        body = ErrorBody(f"The Tracker answers {status}.", "server_error", None, None)
    return ApiError(status, body)
