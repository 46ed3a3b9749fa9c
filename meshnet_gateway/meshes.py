"""Asks the Trackers of the meshes behind this Gateway: Head Workers, models, readiness."""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar
from urllib.parse import quote
from weakref import WeakValueDictionary

import aiohttp
import msgspec
import structlog

from meshnet_common.edge.clock import Clock
from meshnet_common.edge.forwarding import UpstreamUnreachableError, WholeAnswer
from meshnet_common.openai.errors import (
    ApiError,
    ErrorEnvelope,
    model_not_found,
    model_unavailable,
    upstream_failed,
)
from meshnet_gateway.pages import get_page
from meshnet_gateway.routing import join_findings

HEADS_FRESH_SECONDS = 2.0
UNKNOWN_FRESH_SECONDS = 1.0
"""A name that was unknown is looked for again after this, however often it is asked for."""
LOOK_APART_SECONDS = 0.1
"""For one model that is in trouble nobody looks more often, however many wait for it."""
MOST_UNKNOWN_LOOKS = 8
"""So many go on at once for names that are not known to be served: anybody can make some up."""
MAX_MODELS_REMEMBERED = 1024
RETRY_AFTER_SECONDS = 5

# What is the same for every caller; a key that is refused is not.
_SHARED_REFUSALS = frozenset({404, 502, 503, 504})

Answer = TypeVar("Answer")

_logger = structlog.get_logger()


class HeadWorkers(msgspec.Struct, frozen=True):
    """Answer of a Tracker's `GET /v1/head-workers/{model}`: base URLs."""

    endpoints: tuple[str, ...]


class MeshModels(msgspec.Struct, frozen=True):
    """Answer of a Tracker's `GET /v1/models`; a model's other fields are passed on unread."""

    data: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class _Finding:
    """What one look for a model has found."""

    number: int
    """Looks are numbered as they begin."""
    began: float
    heads: tuple[str, ...] | ApiError

    @property
    def is_served(self) -> bool:
        return not isinstance(self.heads, ApiError)

    @property
    def holds_for_all(self) -> bool:
        return not isinstance(self.heads, ApiError) or self.heads.status in _SHARED_REFUSALS

    def is_fresh(self, now: float) -> bool:
        if isinstance(self.heads, ApiError):
            return self.heads.status == 404 and now < self.began + UNKNOWN_FRESH_SECONDS
        return now < self.began + HEADS_FRESH_SECONDS

    def told(self) -> tuple[str, ...]:
        if isinstance(self.heads, ApiError):
            # Each caller has an error of its own, which may go anywhere.
            raise ApiError(self.heads.status, self.heads.body, self.heads.headers)
        return self.heads


class Meshes:
    """The meshes behind this Gateway, by their Trackers' base URLs, in the Operator's order."""

    def __init__(
        self, session: aiohttp.ClientSession, trackers: tuple[str, ...], clock: Clock
    ) -> None:
        self._session = session
        self._trackers = trackers
        self._clock = clock
        self._looks = 0
        self._found: dict[str, _Finding] = {}
        self._looking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._unknown = asyncio.Semaphore(MOST_UNKNOWN_LOOKS)

    async def heads_of(
        self, model: str, headers: Mapping[str, str], *, anew: bool = False
    ) -> tuple[str, ...]:
        """List the Head Workers of a model over all meshes, never none.

        Raises the ApiError of a Mesh, 404 or 503, if no Mesh serves the model, and 502 if none can
        be reached. `headers` carry the caller's key. With `anew` only a look counts that began
        after this call; many calls share one.
        """
        if not model.strip("."):
            raise model_not_found(model)  # `..` in a URL would lead somewhere else.
        earlier = self._looks
        if (found := self._remembered(model, earlier, anew=anew)) is not None:
            return found.told()
        async with self._looking.setdefault(model, asyncio.Lock()):
            if (found := self._remembered(model, earlier, anew=anew)) is None:
                found = await self._look(model, headers)
        return found.told()

    def _remembered(self, model: str, earlier: int, *, anew: bool) -> _Finding | None:
        """Return what was found by a later look than the earlier ones, or is fresh."""
        found = self._found.get(model)
        if found is None:
            return None
        is_fresh = not anew and found.is_fresh(self._clock.now())
        return found if is_fresh or found.number > earlier else None

    async def _look(self, model: str, headers: Mapping[str, str]) -> _Finding:
        before = self._found.get(model)
        if before is not None:
            await asyncio.sleep(before.began + LOOK_APART_SECONDS - self._clock.now())
        is_known = before is not None and before.is_served
        async with nullcontext() if is_known else self._unknown:
            return await self._look_now(model, headers)

    async def _look_now(self, model: str, headers: Mapping[str, str]) -> _Finding:
        self._looks += 1
        number, began = self._looks, self._clock.now()
        found = _Finding(number, began, await self._ask_for(model, headers))
        self._found.pop(model, None)
        if found.holds_for_all:
            self._found[model] = found
        if len(self._found) > MAX_MODELS_REMEMBERED:
            del self._found[next(iter(self._found))]
        return found

    async def _ask_for(self, model: str, headers: Mapping[str, str]) -> tuple[str, ...] | ApiError:
        url_path = f"/v1/head-workers/{quote(model, safe='')}"
        answers = await self._ask_all(url_path, HeadWorkers, headers)
        findings = [
            answer if isinstance(answer, ApiError) else _endpoints(model, answer)
            for answer in answers
        ]
        try:
            return join_findings(findings)
        except ApiError as error:
            return error

    async def models(self, headers: Mapping[str, str]) -> list[dict[str, Any]]:
        """List the models of all meshes, each once; raises ApiError 502 if no Mesh answers."""
        answers = await self._ask_all("/v1/models", MeshModels, headers)
        lists = [answer.data for answer in answers if isinstance(answer, MeshModels)]
        if not lists:
            raise upstream_failed("No Mesh answers.")
        return each_once(*lists)

    async def ready(self) -> bool:
        """Tell whether at least one Mesh is ready."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._is_ready(tracker)) for tracker in self._trackers]
        return any(task.result() for task in tasks)

    async def _is_ready(self, tracker: str) -> bool:
        try:
            return (await get_page(self._session, f"{tracker}/readyz")).status == 200
        except UpstreamUnreachableError:
            return False

    async def _ask_all(
        self, url_path: str, answer_type: type[Answer], headers: Mapping[str, str]
    ) -> list[Answer | ApiError]:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._ask(tracker + url_path, answer_type, headers))
                for tracker in self._trackers
            ]
        return [task.result() for task in tasks]

    async def _ask(
        self, url: str, answer_type: type[Answer], headers: Mapping[str, str]
    ) -> Answer | ApiError:
        try:
            page = await get_page(self._session, url, headers)
            if page.status != 200:
                return _refusal(page)
            return msgspec.json.decode(page.body, type=answer_type)
        except (UpstreamUnreachableError, msgspec.MsgspecError, RecursionError) as error:
            _logger.warning("mesh gave no answer", url=url, reason=repr(error))
            return upstream_failed("No Mesh answers.")


def _endpoints(model: str, answer: HeadWorkers) -> tuple[str, ...] | ApiError:
    if not answer.endpoints:
        message = f"The model `{model}` has no Head Worker now."
        return model_unavailable(message, RETRY_AFTER_SECONDS)
    return tuple(endpoint.rstrip("/") for endpoint in answer.endpoints)


def _refusal(page: WholeAnswer) -> ApiError:
    error = msgspec.json.decode(page.body, type=ErrorEnvelope).error
    passed_on = {"Retry-After", "WWW-Authenticate", "x-should-retry"}
    headers = {name: page.headers[name] for name in passed_on if name in page.headers}
    return ApiError(page.status, error, headers)


def each_once(*lists: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join lists of models; of several with one id the first one counts."""
    by_id: dict[str, dict[str, Any]] = {}
    for model in chain(*lists):
        by_id.setdefault(str(model.get("id")), model)
    return list(by_id.values())
