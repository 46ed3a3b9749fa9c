"""Looks after the Endpoints that the Operator named: what they serve, and how loaded they are."""

import asyncio
from collections.abc import Coroutine

import aiohttp
import msgspec
import structlog
from aiohttp import hdrs

from meshnet_common.edge.forwarding import UpstreamUnreachableError
from meshnet_gateway.config.settings import Endpoint
from meshnet_gateway.limits.upstream_metrics import read_load
from meshnet_gateway.pages import get_page
from meshnet_gateway.serving.admission import Admission
from meshnet_gateway.serving.endpoint_state import EndpointState
from meshnet_gateway.serving.registry import Registry
from meshnet_gateway.serving.served_model import ServedModel

WATCH_SECONDS = 5.0
MODELS = "/v1/models"

_logger = structlog.get_logger()


class ListedId(msgspec.Struct, frozen=True):
    """A model as an Endpoint lists it."""

    id: str


class ListedIds(msgspec.Struct, frozen=True):
    """What an Endpoint serves."""

    data: tuple[ListedId, ...]


class EndpointWatch:
    """Asks Endpoints, again and again or once."""

    def __init__(
        self, session: aiohttp.ClientSession, registry: Registry, admission: Admission
    ) -> None:
        self._session = session
        self._registry = registry
        self._admission = admission

    async def run(self) -> None:
        """Look at all of them until it is cancelled."""
        while True:
            await self.look_round()
            await asyncio.sleep(WATCH_SECONDS)

    async def look_round(self) -> None:
        """Look at each of them once."""
        async with asyncio.TaskGroup() as group:
            for served in self._registry:
                if served.model.endpoints:
                    for state in served:
                        group.create_task(self._alone(self.look(served, state)))
                        group.create_task(self._alone(self._look_at_load(served, state)))

    async def _alone(self, looking: Coroutine[None, None, None]) -> None:
        """Look, whatever a page of somebody else does: the others are looked at all the same."""
        try:
            await looking
        except Exception:
            _logger.exception("endpoint not looked at")

    async def look(self, served: ServedModel, state: EndpointState) -> None:
        """See what an Endpoint serves now."""
        endpoint = state.endpoint
        status, body = await self._get(endpoint.base_url + MODELS, endpoint)
        before = state.listing
        if status is None or status >= 500:
            state.lists(None)
        elif status != 200:
            state.in_doubt = False
            return  # It is there, and has no list.
        else:
            state.in_doubt = False
            try:
                listed = msgspec.json.decode(body, type=ListedIds)
            except (msgspec.DecodeError, RecursionError):
                return
            state.lists(any(one.id == served.model.id for one in listed.data))
        if state.listing is before:
            return
        _logger.info("endpoint looked at", **_facts(served, state), listing=state.listing.value)
        if served.is_gone:
            self._admission.turn_away(served)

    async def _look_at_load(self, served: ServedModel, state: EndpointState) -> None:
        url = state.endpoint.metrics_url
        if url is None:
            return
        status, body = await self._get(url, state.endpoint)
        if status != 200:
            return
        try:
            load = read_load(body.decode(errors="replace"), served.model.id)
        except ValueError:
            _logger.warning("metrics unreadable", **_facts(served, state))
            return
        state.load = load
        if load.waiting:
            state.limit.overloaded(self._admission.clock.now())
            served.retarget()

    async def _get(self, url: str, endpoint: Endpoint) -> tuple[int | None, bytes]:
        key = endpoint.api_key
        headers: dict[str, str] = {} if key is None else {hdrs.AUTHORIZATION: key.bearer}
        try:
            page = await get_page(self._session, url, headers)
        except UpstreamUnreachableError:
            return None, b""
        return page.status, page.body


def _facts(served: ServedModel, state: EndpointState) -> dict[str, str]:
    return {"model": served.model.id, "endpoint": state.endpoint.base_url}
