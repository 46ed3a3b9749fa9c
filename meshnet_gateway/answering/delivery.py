"""Finds who answers: the model's own Endpoints, a Peer, or Endpoints that have to load it first.

Whatever was found is asked anew after a fault, since a model may go elsewhere meanwhile.
"""

from aiohttp import web

from meshnet_common.edge.beside import beside
from meshnet_common.edge.clock import loop_time
from meshnet_common.edge.forwarding import ForwardedAnswer, UpstreamRefusedError
from meshnet_common.openai.errors import ApiError, upstream_failed
from meshnet_gateway.answering.asked import Asked
from meshnet_gateway.answering.attempts import Attempts, urls_of
from meshnet_gateway.answering.sampling import knows_no_way
from meshnet_gateway.config.settings import Peer
from meshnet_gateway.federation.peers import Presence
from meshnet_gateway.services import Services
from meshnet_gateway.serving.peers import Wanted
from meshnet_gateway.serving.served_model import ServedModel

# What a Mesh refuses otherwise, a key for instance, is no matter for somebody else.
_NOT_HERE = frozenset({404, 502, 503, 504})


class Delivery:
    """One answer on its way."""

    def __init__(self, services: Services, asked: Asked, answer: ForwardedAnswer) -> None:
        self._services = services
        self._asked = asked
        self._answer = answer
        self._attempts = Attempts(services, asked, answer)
        self._was_served = False

    async def run(self) -> web.StreamResponse:
        """Answer, whatever happens; a client that goes away cancels it."""
        try:
            if not self._asked.is_stream:
                return await self._attempts.until_answered(self._try)
            async with beside(self._answer.keep_company(self._attempts.ahead)):
                return await self._attempts.until_answered(self._try)
        except ApiError as error:
            return await self._answer.fail(error)

    async def _try(self) -> web.StreamResponse | None:
        served, refusal = await self._find()
        if (peer := self._peer(served, refusal)) is not None:
            return await self._attempts.through(peer)
        if served is None:
            return await self._wait(refusal)
        if served.is_gone and not await self._services.watch.is_back(served):
            raise refusal
        if self._attempts.is_lost(served):
            return await self._attempts.give_up()
        return await self._attempts.locally(served)

    async def _find(self) -> tuple[ServedModel | None, ApiError]:
        """Find who serves the model here, or why nobody does; raises what a Mesh forbids."""
        asked, anew = self._asked, self._attempts.last is not None
        try:
            served = await self._services.registry.find(asked.model, asked.caller, anew=anew)
        except ApiError as error:
            if error.status not in _NOT_HERE:
                raise
            return None, error
        self._was_served = True
        return served, _served_no_more(asked.model)

    def _peer(self, served: ServedModel | None, refusal: ApiError) -> Peer | None:
        """Choose a Peer where the model is not resident here; raises ApiError."""
        now, presence = self._services.steady.now(), Presence.LOADABLE
        if served is None:
            if refusal.status == 404 and self._attempts.last is None:
                presence = Presence.UNKNOWN
        elif served.is_resident(now) and not self._attempts.tries.is_spent(urls_of(served)):
            presence = Presence.RESIDENT
        tries, asked = self._attempts.tries, self._asked
        wanted = Wanted(asked.model, presence, asked.via, tries.barred_for_good)
        choice = self._services.peers.choose(wanted, tries.barred(loop_time()), now)
        # To load the model here is better than a Peer that has just failed.
        return choice.peer if choice.is_fit or served is None else None

    async def _wait(self, refusal: ApiError) -> web.StreamResponse | None:
        """Wait for a model that was served a moment ago; raises what else there is to say."""
        last = self._attempts.last
        if refusal.status == 404 and isinstance(last, UpstreamRefusedError):
            return await self._attempts.give_up()  # The last word is a Peer's.
        if last is None or (not self._was_served and knows_no_way(last)):
            raise refusal
        if refusal.status == 404:
            raise _served_no_more(self._asked.model) if self._was_served else refusal
        await self._attempts.rest(self._attempts.tries.backoff_seconds)
        return None


def _served_no_more(model: str) -> ApiError:
    return upstream_failed(f"Nobody serves `{model}` any more.")
