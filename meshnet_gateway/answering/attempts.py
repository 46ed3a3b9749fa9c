"""The attempts of one request: at an Endpoint that has a place for it, or through a Peer.

Until the first `data:` event is out, a fault is held: another Endpoint is tried at once, the same
one after a rest, until the time allowed is over. After a fault nobody is sent to an Endpoint again
before it was seen that it does not serve another model by now.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import structlog
from aiohttp import hdrs, web

from meshnet_common.edge.clock import loop_time
from meshnet_common.edge.forwarding import (
    ForwardedAnswer,
    Target,
    UpstreamError,
    UpstreamRefusedError,
    UpstreamUnreachableError,
)
from meshnet_common.openai.errors import overloaded, upstream_failed
from meshnet_gateway.answering.asked import Asked
from meshnet_gateway.answering.sampling import (
    NotServedError,
    Sampler,
    any_dimensions,
    is_blamed,
    knows_no_way,
)
from meshnet_gateway.answering.tries import Tries
from meshnet_gateway.config.settings import Peer, Secret
from meshnet_gateway.federation.via import VIA_HEADER, write_via
from meshnet_gateway.services import Services
from meshnet_gateway.serving.admission import NEXT, RETRY_AFTER_SECONDS, Lease, NoPlaceError, Turn
from meshnet_gateway.serving.endpoint_state import Outcome
from meshnet_gateway.serving.pulse import Pulse
from meshnet_gateway.serving.served_model import ServedModel

# Who answers so may do better soon.
_PASSING_STATUSES = frozenset({429, 502, 503})
_OVERLOAD_STATUSES = frozenset({429, 503})

_logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Upstream:
    """Whoever is asked to answer."""

    base_url: str
    headers: Mapping[str, str]
    pulse: Pulse
    has_others: Callable[[], bool]
    """Whether somebody else might answer instead."""


class Attempts:
    """What one request has tried, and the answer that it gets in the end."""

    def __init__(
        self,
        services: Services,
        asked: Asked,
        answer: ForwardedAnswer,
        fits: Callable[[int], bool] = any_dimensions,
        answer_seconds: float | None = None,
    ) -> None:
        self._services = services
        self._asked = asked
        self._answer = answer
        self._fits = fits
        self._answer_seconds = answer_seconds
        settings = services.settings
        model = settings.model(asked.model) or settings.unnamed_model(asked.model)
        self._hold_seconds = model.hold_seconds
        self._deadline = loop_time() + model.hold_seconds
        self._turn: Turn | None = None
        self.tries = Tries(settings.connect_retries, settings.connect_backoff_ms / 1000)
        self.last: UpstreamError | None = None
        """What went wrong last, if anything has."""

    @property
    def is_over(self) -> bool:
        """Whether something went wrong, and no time is left to try again."""
        return self.last is not None and loop_time() >= self._deadline

    def hold_anew(self, least_seconds: float = 0.0) -> None:
        """Give it all its time again."""
        self._deadline = loop_time() + max(self._hold_seconds, least_seconds)

    def is_lost(self, served: ServedModel) -> bool:
        """Tell whether none of its Endpoints is to be tried any more."""
        return self.tries.is_lost(urls_of(served))

    def ahead(self) -> int:
        """How many others go first."""
        return 0 if self._turn is None else self._services.admission.ahead(self._turn)

    async def until_answered(
        self, one_try: Callable[[], Awaitable[web.StreamResponse | None]]
    ) -> web.StreamResponse:
        """Try again until there is an answer or no time is left; raises ApiError."""
        while not self.is_over:
            try:
                if (response := await one_try()) is not None:
                    return response
            except UpstreamError as error:
                self.last = error
        return await self.give_up()

    async def locally(self, served: ServedModel) -> web.StreamResponse | None:
        """Try the best Endpoint, if there is a place; None if this was to no end.

        Raises UpstreamError, also for what went wrong before if there is no place in time; ApiError
        if nothing has.
        """
        urls = urls_of(served)
        await self.rest(self.tries.rest_seconds(urls, loop_time()))
        turn = self._turn = Turn(served, self._deadline, self._asked.key)
        turn.barred = self.tries.barred(loop_time())
        if self.tries.any_failed and any(state.is_closed for state in served):
            turn.priority = NEXT
        try:
            async with self._services.admission.lease(turn) as lease:
                if lease is not None:
                    return await self._attempt(served, lease)
        except NoPlaceError as error:
            raise self.last or overloaded(str(error), RETRY_AFTER_SECONDS) from error
        await self.rest(self.tries.backoff_seconds)
        return None

    async def _attempt(self, served: ServedModel, lease: Lease) -> web.StreamResponse:
        state, url = lease.state, lease.state.endpoint.base_url
        if state.in_doubt and served.model.endpoints:
            await self._services.watch.look(served, state)
            if state.is_swapped:
                self.tries.bar(url)
                raise NotServedError(f"It serves {self._asked.model!r} no more.")
        admission, is_ours = self._services.admission, not served.model.endpoints
        headers = self._headers(state.endpoint.api_key, is_ours=is_ours)
        sampler = self._sampler(lambda: admission.answered(lease))
        upstream = _Upstream(url, headers, state.pulse, lambda: self._has_others(served, url))
        try:
            response = await self._forward(upstream, sampler)
        except UpstreamError as error:
            # One request that fails again and again must not keep all others from an Endpoint.
            is_known = self.tries.has_failed(url) and state.is_closed
            told = self._note(error, url)
            lease.outcome = Outcome.UNSAID if is_known else told
            self._signal(error, lease)
            raise
        lease.outcome = Outcome.FAILED if self._answer.lost else Outcome.SUCCEEDED
        if self._answer.lost is None and not self.tries.any_failed:
            self._observe(sampler, lease)
        return response

    async def through(self, peer: Peer) -> web.StreamResponse:
        """Let a Peer answer; one that has just failed gets a rest before."""
        peers, url = self._services.peers, peer.base_url
        await self.rest(self.tries.rest_seconds((url,), loop_time()))
        via = write_via(self._asked.via, self._services.settings.mesh_id)
        headers = {**self._headers(peer.api_key, is_ours=True), VIA_HEADER: via}
        pulse = peers.pulse(peer)
        # A Gateway that lives is never deaf, so one that is silent is not worth waiting for.
        upstream = _Upstream(url, headers, pulse, lambda: True)
        with peers.under_way(peer):
            try:
                response = await self._forward(upstream, self._sampler(pulse.gave_an_answer))
            except UpstreamError as error:
                now = self._services.steady.now()
                if isinstance(error, NotServedError):
                    peers.lacks(peer, self._asked.model, now)
                if self._note(error, url) is Outcome.FAILED:
                    peers.failed(peer, now)
                raise
            if self._answer.lost is not None:
                peers.failed(peer, self._services.steady.now())
            return response

    async def _forward(self, upstream: _Upstream, sampler: Sampler) -> web.StreamResponse:
        url = upstream.base_url + self._asked.url_path
        target = Target(url, self._asked.body, upstream.headers)
        patience = asyncio.timeout(self._answer_seconds)

        def leave(silent_since: float) -> None:
            has_heard = sampler.heard_at >= silent_since
            if has_heard or not (sampler.has_begun or upstream.has_others()):
                return
            self.tries.leave(upstream.base_url)
            if not self._answer.hang_up() and not patience.expired():
                patience.reschedule(loop_time())

        try:
            with upstream.pulse.heeded(leave):
                async with patience:
                    return await self._answer.forward(self._services.session, target, sampler)
        except TimeoutError as error:
            raise UpstreamUnreachableError("It took too long, or fell silent.") from error

    def _has_others(self, served: ServedModel, url: str) -> bool:
        """Tell whether another Endpoint, a fallback or a Peer might do better than this one."""
        now, given_up = self._services.steady.now(), self.tries.given_up | {url}
        if served.model.fallback is not None or served.any_resident(given_up, now):
            return True
        return self._services.peers.any_fit(self._asked.model, self._asked.via, given_up, now)

    def _note(self, error: UpstreamError, url: str) -> Outcome:
        """Learn where not to go next from what went wrong."""
        _logger.warning("upstream failed", upstream=url, reason=str(error))
        if not self.tries.any_failed:
            # However long it had to wait before: there may be another one that answers.
            self.hold_anew()
        match error:
            case _ if knows_no_way(error):
                # Another Peer may, since each asks others.
                self.tries.bar(url)
                return Outcome.UNSAID
            case _ if is_blamed(error):
                # Whoever else got it would fall over it as well.
                self._deadline = loop_time()
                return Outcome.UNSAID
            case UpstreamRefusedError() if error.refusal.status not in _PASSING_STATUSES:
                self.tries.bar(url)
            case _:
                self.tries.failed(url, loop_time())
        return Outcome.FAILED

    def _signal(self, error: UpstreamError, lease: Lease) -> None:
        """Tell the limit of an Endpoint that it has too much."""
        now, state = self._services.steady.now(), lease.state
        state.in_doubt = True
        match error:
            case UpstreamRefusedError() if error.refusal.status in _OVERLOAD_STATUSES:
                state.limit.overloaded(now)
            case UpstreamUnreachableError():
                state.unreachable(now)
                state.limit.overloaded(now)
            case _:
                pass
        lease.turn.served.retarget()

    def _observe(self, sampler: Sampler, lease: Lease) -> None:
        pace = sampler.pace()
        if pace is not None:
            state = lease.state
            state.limit.observe(pace, state.in_flight, self._services.steady.now())
            lease.turn.served.retarget()

    async def give_up(self) -> web.StreamResponse:
        if isinstance(self.last, UpstreamRefusedError):
            return await self._answer.give_up(self.last)
        raise upstream_failed(f"Nobody could answer for `{self._asked.model}`.")

    async def rest(self, seconds: float) -> None:
        left = self._deadline - loop_time()
        if seconds > 0 and left > 0:
            await asyncio.sleep(min(seconds, left))

    def _sampler(self, on_answer: Callable[[], None]) -> Sampler:
        return Sampler(self._asked, self._services.steady, self._fits, on_answer)

    def _headers(self, key: Secret | None, *, is_ours: bool) -> Mapping[str, str]:
        """What is told of the client: its own key only where nobody needs another one.

        A server that is no part of a Mesh or of the federation has nothing to do with it.
        """
        if key is not None:
            return {**self._asked.headers, hdrs.AUTHORIZATION: key.bearer}
        return {**self._asked.headers, **self._asked.caller} if is_ours else self._asked.headers


def urls_of(served: ServedModel) -> tuple[str, ...]:
    """The base URLs by which its Endpoints are known."""
    return tuple(state.endpoint.base_url for state in served)
