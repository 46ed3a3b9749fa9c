"""Asks the Trackers of the meshes behind this Gateway: Head Workers, models, readiness."""

import asyncio
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, TypeVar
from urllib.parse import quote

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
MAX_MODELS_REMEMBERED = 1024
RETRY_AFTER_SECONDS = 5

Answer = TypeVar("Answer")

_logger = structlog.get_logger()


class HeadWorkers(msgspec.Struct, frozen=True):
    """Answer of a Tracker's `GET /v1/head-workers/{model}`: base URLs."""

    endpoints: tuple[str, ...]


class MeshModels(msgspec.Struct, frozen=True):
    """Answer of a Tracker's `GET /v1/models`; a model's other fields are passed on unread."""

    data: tuple[dict[str, Any], ...]


class Meshes:
    """The meshes behind this Gateway, by their Trackers' base URLs, in the Operator's order."""

    def __init__(
        self, session: aiohttp.ClientSession, trackers: tuple[str, ...], clock: Clock
    ) -> None:
        self._session = session
        self._trackers = trackers
        self._clock = clock
        self._remembered: dict[str, tuple[float, tuple[str, ...]]] = {}

    async def heads_of(self, model: str, headers: Mapping[str, str]) -> tuple[str, ...]:
        """List the Head Workers of a model over all meshes, never none.

        Raises the ApiError of a Mesh, 404 or 503, if no Mesh serves the model, and 502 if none can
        be reached. `headers` carry the caller's key.
        """
        now = self._clock.now()
        fresh_until, heads = self._remembered.get(model, (0.0, ()))
        if now < fresh_until:
            return heads
        if not model.strip("."):
            raise model_not_found(model)  # `..` in a URL would lead somewhere else.
        url_path = f"/v1/head-workers/{quote(model, safe='')}"
        answers = await self._ask_all(url_path, HeadWorkers, headers)
        heads = join_findings(
            [
                answer if isinstance(answer, ApiError) else _endpoints(model, answer)
                for answer in answers
            ]
        )
        if len(self._remembered) >= MAX_MODELS_REMEMBERED:
            self._remembered.clear()
        self._remembered[model] = (now + HEADS_FRESH_SECONDS, heads)
        return heads

    def forget(self, model: str) -> None:
        """Ask the Trackers anew when the model is asked for next."""
        self._remembered.pop(model, None)

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
