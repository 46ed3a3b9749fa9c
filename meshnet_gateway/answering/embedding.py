"""Brings an embedding to its client: by the model's own Endpoints, or by its fallback meanwhile.

Whoever answers is held to the same number of dimensions; an answer with another one is a fault.
"""

import msgspec
from aiohttp import web

from meshnet_common.edge.forwarding import ForwardedAnswer, UpstreamError
from meshnet_common.openai.errors import ApiError
from meshnet_gateway.answering.asked import Asked
from meshnet_gateway.answering.attempts import Attempts
from meshnet_gateway.answering.sampling import any_dimensions
from meshnet_gateway.limits.failover import Side
from meshnet_gateway.services import Services
from meshnet_gateway.serving.embedder import Sides
from meshnet_gateway.serving.endpoint_state import Outcome

EMBEDDING_SECONDS = 60.0
"""One that takes so long hangs; there is another one to ask."""

OTHER_SIDE_SECONDS = 1.0
"""For the other side there is time even where nothing is to be held."""


class AskedDimensions(msgspec.Struct, frozen=True):
    """How many dimensions a client wants, if it says so."""

    dimensions: int | None = None


class EmbeddingDelivery:
    """One embedding on its way."""

    def __init__(
        self, services: Services, asked: Asked, answer: ForwardedAnswer, sides: Sides
    ) -> None:
        fits = any_dimensions if _asks_for_dimensions(asked) else sides.embedder.failover.fits
        self._attempts = Attempts(services, asked, answer, fits, EMBEDDING_SECONDS)
        self._admission = services.admission
        self._now = services.steady.now
        self._answer = answer
        self._sides = sides
        self._has_failed_over = False

    async def run(self) -> web.StreamResponse:
        """Answer, whatever happens; a client that goes away cancels it."""
        try:
            return await self._attempts.until_answered(self._try)
        except ApiError as error:
            return await self._answer.fail(error)

    async def _try(self) -> web.StreamResponse | None:
        sides = self._sides
        spared = self._attempts.is_lost(sides.primary)
        if spared and self._attempts.is_lost(sides.fallback):
            return await self._attempts.give_up()
        model = sides.primary.model.id
        with sides.embedder.trial(model, self._now, spared=spared) as trial:
            served = sides.primary if trial.side is Side.PRIMARY else sides.fallback
            if served.is_gone and trial.side is Side.PRIMARY:
                trial.outcome = Outcome.FAILED
                return None
            try:
                response = await self._attempts.locally(served)
            except UpstreamError:
                trial.outcome = Outcome.FAILED
                # Whoever waits for a place there may have one at the other side.
                self._admission.turn_away(served)
                if trial.side is Side.PRIMARY and not self._has_failed_over:
                    self._has_failed_over = True
                    self._attempts.hold_anew(OTHER_SIDE_SECONDS)
                raise
            if response is not None:
                trial.outcome = Outcome.SUCCEEDED
            return response


def _asks_for_dimensions(asked: Asked) -> bool:
    try:
        return msgspec.json.decode(asked.body, type=AskedDimensions).dimensions is not None
    except (msgspec.DecodeError, RecursionError):
        return False
