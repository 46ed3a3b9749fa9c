"""Looks after the Endpoints that the Operator named: what they serve, and how loaded they are.

And after whoever else has requests of ours, Head Workers and Peers: whether they are still there.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from functools import partial
from weakref import WeakValueDictionary

import aiohttp
import msgspec
import structlog
from aiohttp import hdrs

from meshnet_common.edge.forwarding import UpstreamUnreachableError, WholeAnswer
from meshnet_gateway.limits.upstream_metrics import read_load
from meshnet_gateway.pages import NoSignOfLifeError, get_page
from meshnet_gateway.serving.admission import Admission
from meshnet_gateway.serving.endpoint_state import EndpointState
from meshnet_gateway.serving.peers import Peers
from meshnet_gateway.serving.pulse import Pulse
from meshnet_gateway.serving.registry import Registry
from meshnet_gateway.serving.served_model import ServedModel

WATCH_SECONDS = 5.0
FRESH_SECONDS = 1.0
"""That a model is gone is not asked again for so long."""
MODELS = "/v1/models"
HEALTH = "/healthz"

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
        self,
        session: aiohttp.ClientSession,
        registry: Registry,
        admission: Admission,
        peers: Peers,
    ) -> None:
        self._session = session
        self._registry = registry
        self._admission = admission
        self._peers = peers
        self._looking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def run(self) -> None:
        """Look at all of them until it is cancelled."""
        while True:
            await self.look_round()
            await asyncio.sleep(WATCH_SECONDS)

    async def look_round(self) -> None:
        """Look at each of them once."""
        async with asyncio.TaskGroup() as group:
            for looking in self._looks():
                group.create_task(self._alone(looking))

    def _looks(self) -> Iterator[Coroutine[None, None, None]]:
        for served in self._registry:
            for state in served:
                if served.model.endpoints:
                    yield self._twice(state.pulse, partial(self.look, served, state))
                    yield self._look_at_load(served, state)
                elif state.pulse.is_heeded:
                    yield self._look_for_life(state.endpoint.base_url, state.pulse)
        for peer in self._peers.listed:
            if (pulse := self._peers.pulse(peer)).is_heeded:
                yield self._look_for_life(peer.base_url, pulse)

    async def _alone(self, looking: Coroutine[None, None, None]) -> None:
        """Look, whatever a page of somebody else does: the others are looked at all the same."""
        try:
            await looking
        except Exception:
            _logger.exception("endpoint not looked at")

    def _look_for_life(self, base_url: str, pulse: Pulse) -> Coroutine[None, None, None]:
        """See whether one that has no list for us says anything at all."""
        return self._twice(pulse, partial(self._look, pulse, base_url + HEALTH))

    async def _twice(self, pulse: Pulse, look: Callable[[], Awaitable[object]]) -> None:
        await look()
        if pulse.in_question:
            # Who waits there is not to wait for the next round.
            await look()

    async def is_back(self, served: ServedModel) -> bool:
        """Look once more for a model that is gone; many calls share one look."""
        stale = self._now() - FRESH_SECONDS
        lock = self._looking.setdefault(served.capacity_key, asyncio.Lock())
        async with lock, asyncio.TaskGroup() as group:
            for state in served:
                if state.looked_at <= stale:
                    group.create_task(self._alone(self.look(served, state)))
        return not served.is_gone

    async def look(self, served: ServedModel, state: EndpointState) -> None:
        """See what an Endpoint serves now."""
        state.looked_at = self._now()
        page = await self._look(state.pulse, state.endpoint.base_url + MODELS, _headers(state))
        before = state.listing
        if page is None or page.status >= 500:
            state.lists(None)
        else:
            state.in_doubt = False
            self._read_list(page, served, state)
        if state.listing is before:
            return
        _logger.info("endpoint looked at", **_facts(served, state), listing=state.listing.value)
        if served.is_gone:
            self._admission.turn_away(served)

    def _read_list(self, page: WholeAnswer, served: ServedModel, state: EndpointState) -> None:
        try:
            listed = msgspec.json.decode(page.body, type=ListedIds) if page.status == 200 else None
        except (msgspec.DecodeError, RecursionError):
            listed = None
        if listed is None:
            state.has_no_list()
        else:
            state.lists(any(one.id == served.model.id for one in listed.data))

    async def _look_at_load(self, served: ServedModel, state: EndpointState) -> None:
        url = state.endpoint.metrics_url
        if url is None:
            return
        try:
            page = await get_page(self._session, url, _headers(state))
        except UpstreamUnreachableError:
            return
        if page.status != 200:
            return
        try:
            load = read_load(page.body.decode(errors="replace"), served.model.id)
        except ValueError:
            _logger.warning("metrics unreadable", **_facts(served, state))
            return
        state.load = load
        if load.waiting:
            state.limit.overloaded(self._now())
            served.retarget()

    async def _look(
        self, pulse: Pulse, url: str, headers: Mapping[str, str] | None = None
    ) -> WholeAnswer | None:
        look = pulse.look(self._now())
        try:
            page = await get_page(self._session, url, headers)
        except NoSignOfLifeError:
            pulse.missed(look, self._now())
            return None
        except UpstreamUnreachableError:
            # Somebody is there: what has become of requests shows at their own connections.
            pulse.answered(look)
            return None
        pulse.answered(look)
        return page

    def _now(self) -> float:
        return self._admission.clock.now()


def _headers(state: EndpointState) -> Mapping[str, str]:
    key = state.endpoint.api_key
    return {} if key is None else {hdrs.AUTHORIZATION: key.bearer}


def _facts(served: ServedModel, state: EndpointState) -> dict[str, str]:
    return {"model": served.model.id, "endpoint": state.endpoint.base_url}
