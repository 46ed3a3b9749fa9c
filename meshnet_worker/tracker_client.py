"""The Tracker's HTTP API as a Worker calls it: one method per call, no loops here."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar
from urllib.parse import quote

import aiohttp
import msgspec
import structlog

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
from meshnet_worker.trackers import Trackers

CALL_SECONDS = 10.0
MANIFEST_SECONDS = 60.0
UNAUTHORIZED = 401
UNAVAILABLE = 503
NO_DATABASE = "database_unavailable"
ADVICE = "Check --tracker, and that the Tracker runs."

_Answer = TypeVar("_Answer")

log = structlog.get_logger()


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


@dataclass(frozen=True, slots=True)
class _Call:
    """One call; the Tracker is silent for `wait_seconds` on purpose, a body may take longer."""

    method: str
    path: str
    body: msgspec.Struct | bytes | None = None
    query: Mapping[str, str] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    wait_seconds: float = 0.0
    body_seconds: float = 0.0

    def timeout(self, patience_seconds: float | None) -> aiohttp.ClientTimeout:
        """Limit the whole call, and where there is less patience the silence in it too."""
        whole = CALL_SECONDS + self.wait_seconds + self.body_seconds
        if patience_seconds is None:
            return aiohttp.ClientTimeout(total=whole)
        silence = patience_seconds + self.wait_seconds
        return aiohttp.ClientTimeout(total=whole, connect=patience_seconds, sock_read=silence)

    def data(self) -> bytes | None:
        return (
            msgspec.json.encode(self.body) if isinstance(self.body, msgspec.Struct) else self.body
        )


class TrackerClient:
    """Calls the Tracker at one of these base URLs: where one is at fault, the next at once."""

    def __init__(self, *urls: str) -> None:
        self.trackers = Trackers(*urls)
        self._registered: Registered | None = None
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def register(self, body: RegisterWorker) -> Registered:
        """Join the Mesh; raises WorkerTooSmallError, TrackerRefusedError or unreachable."""
        self._registered = None
        status, answer = await self._call(_Call("POST", "/v1/workers", body))
        if _is_fault(status, answer):
            raise TrackerUnreachableError(f"{self.trackers.present} answers {status}. {ADVICE}")
        if not _is_success(status):
            error = _error(status, answer)
            is_too_small = error.body.code == "insufficient_memory"
            raise (WorkerTooSmallError if is_too_small else TrackerRefusedError)(error.body.message)
        self._registered = terms = self._read(answer, Registered)
        self.trackers.learn_terms(terms.heartbeat_seconds, terms.lost_after_seconds)
        return terms

    async def heartbeat(self, body: Heartbeat) -> HeartbeatReply:
        answer = await self._own(_Call("POST", "/heartbeat", body))
        return self._read(answer, HeartbeatReply)

    async def directives(self, after: int, wait_seconds: float) -> tuple[Directive, ...]:
        """Wait for Rebalance Directives with a higher epoch."""
        query = {"after": str(after), "wait": str(wait_seconds)}
        answer = await self._own(
            _Call("GET", "/directives", query=query, wait_seconds=wait_seconds)
        )
        return self._read(answer, DirectiveList).directives

    async def report(self, directive_id: str, body: DirectiveReport) -> None:
        await self._own(_Call("POST", f"/directives/{directive_id}", body))

    async def send_probe(self, body: bytes) -> None:
        """Send bytes that mean nothing, to measure the link."""
        await self._own(_Call("POST", "/link-probe", body))

    async def leave(self) -> None:
        """Say goodbye: the Tracker gives this Worker's Layers to others at once."""
        await self._own(_Call("DELETE", ""))

    async def preset(self, name: str) -> ModelPreset:
        """Fetch a preset with its manifest, which is megabytes for a model of many experts."""
        path = f"/v1/presets/{quote(name, safe='')}"
        status, answer = await self._call(_Call("GET", path, body_seconds=MANIFEST_SECONDS))
        if not _is_success(status):
            raise _error(status, answer)
        return self._read(answer, PresetAnswer).preset

    async def route(self, public_name: str, head: str, authorization: str | None) -> str:
        """Fetch a signed route that starts here; raises ApiError as the Tracker answered."""
        headers = {"Authorization": authorization} if authorization else {}
        path = f"/v1/route/{quote(public_name, safe='')}"
        call = _Call("GET", path, query={"head": head}, headers=headers)
        status, answer = await self._call(call)
        if not _is_success(status):
            raise _error(status, answer)
        return self._read(answer, RouteAnswer).ticket

    async def renew(
        self, ticket: str, avoid: frozenset[str], faults: tuple[HopFault, ...] = ()
    ) -> str:
        """Fetch a fresh ticket for a ticket's Session; raises ApiError as the Tracker answered."""
        body = RenewRoute(ticket=ticket, avoid=tuple(sorted(avoid)), faults=faults)
        status, answer = await self._call(_Call("POST", "/v1/route/renew", body))
        if not _is_success(status):
            raise _error(status, answer)
        return self._read(answer, RouteAnswer).ticket

    async def head_workers(self, public_name: str) -> tuple[str, ...]:
        """Ask for the URLs of a model's Head Workers; raises ApiError as the Tracker answered."""
        path = f"/v1/head-workers/{quote(public_name, safe='')}"
        status, answer = await self._call(_Call("GET", path))
        if not _is_success(status):
            raise _error(status, answer)
        return self._read(answer, _HeadWorkers).endpoints

    async def keys(self) -> KeySet:
        status, answer = await self._call(_Call("GET", "/v1/keys"))
        if not _is_success(status):
            raise TrackerUnreachableError(f"{self.trackers.present}/v1/keys answers {status}.")
        return read_key_set(answer)

    def _read(self, answer: bytes, kind: type[_Answer]) -> _Answer:
        try:
            return msgspec.json.decode(answer, type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            facts = (
                f"{self.trackers.present} answers what no Tracker would: {error}. Check --tracker."
            )
            raise TrackerUnreachableError(facts) from error

    async def _own(self, call: _Call) -> bytes:
        """Make a call below this Worker's own path, with its token."""
        if self._registered is None:
            raise NotRegisteredError
        path = f"/v1/workers/{self._registered.worker_id}{call.path}"
        headers = {"Authorization": f"Bearer {self._registered.token}"}
        status, answer = await self._call(replace(call, path=path, headers=headers))
        if status == UNAUTHORIZED:
            raise NotRegisteredError
        if not _is_success(status):
            raise _error(status, answer)
        return answer

    async def _call(self, call: _Call) -> tuple[int, bytes]:
        """Try each Tracker once; where all are at fault, tell what one of them answered."""
        faults: list[str] = []
        faulty: tuple[int, bytes] | None = None
        for url, patience_seconds in self.trackers.round():
            try:
                status, answer = await self._try(url, call, patience_seconds)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                faults.append(f"{url}: {str(error) or type(error).__name__}")
                continue
            if not _is_fault(status, answer):
                # A call that waited long says nothing of which Tracker the others have found.
                if faults and self.trackers.stay_with(url):
                    log.warning("other tracker", tracker=url, reason="; ".join(faults))
                return status, answer
            faulty = status, answer
            faults.append(f"{url}: answers {status}")
        if faulty is None:
            raise TrackerUnreachableError(f"{'; '.join(faults)}. {ADVICE}")
        return faulty

    async def _try(
        self, url: str, call: _Call, patience_seconds: float | None
    ) -> tuple[int, bytes]:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        async with self._session.request(
            call.method,
            f"{url}{call.path}",
            params=call.query,
            headers={**call.headers, "Content-Type": "application/json"},
            data=call.data(),
            timeout=call.timeout(patience_seconds),
        ) as response:
            return response.status, await response.read()


class _HeadWorkers(msgspec.Struct):
    endpoints: tuple[str, ...]


class _Envelope(msgspec.Struct):
    error: ErrorBody


def _is_success(status: int) -> bool:
    return 200 <= status < 300


def _is_fault(status: int, answer: bytes) -> bool:
    """Whether another Tracker may do better; that a model is not served, each would say."""
    if status != UNAVAILABLE:
        return status >= 500
    return _error(status, answer).body.code in (None, NO_DATABASE)


def _error(status: int, answer: bytes) -> ApiError:
    try:
        body = msgspec.json.decode(answer, type=_Envelope).error
    except (msgspec.DecodeError, RecursionError):
        body = ErrorBody(f"The Tracker answers {status}.", "server_error", None, None)
    return ApiError(status, body)
