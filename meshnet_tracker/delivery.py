"""Brings one answer to its client, over as many Head Workers as it takes.

One loop: a Head Worker answers, and if it fails another one goes on from the record of what the
client has got. Nothing is sent twice and nothing is left out, since the record grows with each
whole event that was written and with nothing else.
"""

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass

import structlog
from aiohttp import hdrs, web

from meshnet_common.edge.beside import beside
from meshnet_common.edge.forwarding import Target
from meshnet_common.errors import MeshnetError
from meshnet_common.ids import WorkerId
from meshnet_common.openai.apis import AnyRequest, Api
from meshnet_common.openai.errors import (
    ApiError,
    database_unavailable,
    model_unavailable,
    request_blamed,
    upstream_failed,
    worker_lost,
)
from meshnet_common.protocol.messages import RouteAnswer
from meshnet_common.protocol.notes import Failure, Sent
from meshnet_common.protocol.resume import (
    RESUME_HEADER,
    TOKEN_IDS_HEADER,
    Block,
    HeadStream,
    ResumeRecord,
    encode_resume,
)
from meshnet_common.protocol.tickets import TICKET_HEADER
from meshnet_tracker.answer_times import Doing
from meshnet_tracker.client_answer import ClientAnswer, Ending
from meshnet_tracker.head_call import (
    HeadAnsweredError,
    HeadCall,
    HeadCutOffError,
    HeadFaultError,
    HeadUnreachedError,
)
from meshnet_tracker.head_search import HeadSearch, NoHeadError
from meshnet_tracker.models import RETRY_AFTER_SECONDS
from meshnet_tracker.quarantine import QUARANTINE_SECONDS
from meshnet_tracker.store.errors import DatabaseUnavailableError

# A Head Worker that answers so cannot do it; another one may do better.
_REFUSALS = frozenset({502, 503})

# It has waited for room, or has no place in its queue; to ask again at once is no help.
_FULL = "overloaded"

# The Head Worker or its Route is only not ready now.
_MAY_BE_OVER_SOON = frozenset({"model_unavailable", "draining"})

_logger = structlog.get_logger()


class HeadMovedError(MeshnetError):
    """The Head Worker leaves the Mesh."""


class EngineFelledError(HeadMovedError):
    """The Head Worker has lost its engine."""


class RouteFailedError(MeshnetError):
    """The Head Worker has ended its answer with an error, though another one may go on."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(f"{ending.status} {ending.error.code}.")
        self.ending = ending


HeadError = HeadMovedError | HeadAnsweredError | HeadFaultError | RouteFailedError


@dataclass(frozen=True, slots=True)
class Asked:
    """What the client wants: its body as it came, what that says, and the headers to pass on."""

    api: Api
    body: bytes
    request: AnyRequest
    headers: Mapping[str, str]
    request_id: str
    meaning: bytes = b""
    """What it says, however it is spelled (`openai.meaning`)."""


class Delivery:
    """One answer on its way."""

    def __init__(
        self, asked: Asked, client: ClientAnswer, search: HeadSearch, call: HeadCall
    ) -> None:
        self._asked = asked
        self._client = client
        self._search = search
        self._call = call
        self._record: ResumeRecord | None = None
        self._refusal: Ending | None = None
        self._ahead_at_head = 0
        self._was_in_line = False
        self._usage = 0, 0

    @property
    def tokens(self) -> int:
        """What the answer has cost so far, prompt and all, as its Head Workers tell it."""
        prompt, told = self._usage
        taken = self._record.choices if self._record is not None else ()
        return prompt + max(told, sum(len(choice.token_ids) for choice in taken))

    async def run(self) -> web.StreamResponse:
        """Answer, whatever happens; a client that goes away cancels it."""
        async with beside(self._client.keep_company(self._ahead)):
            return await self._deliver()

    def _ahead(self) -> int:
        """How many others are answered first, here or at the Head Worker."""
        return max(self._search.ahead(), self._ahead_at_head)

    async def _deliver(self) -> web.StreamResponse:
        while True:
            try:
                route = await self._search.next_route()
            except NoHeadError as error:
                return await self._client.fail(self._ending(error))
            except DatabaseUnavailableError as error:
                _logger.warning("request refused", reason=str(error))
                return await self._client.fail(Ending.of(database_unavailable(RETRY_AFTER_SECONDS)))
            try:
                return await self._read(route)
            except (HeadMovedError, HeadAnsweredError, HeadFaultError, RouteFailedError) as error:
                ended = await self._after(error)
            if ended is None and self._search.tries.is_blamed:
                ended = await self._blame()
            if ended is not None:
                return ended

    async def _after(self, error: HeadError) -> web.StreamResponse | None:
        """Learn from a Head Worker that did not end the answer; returns it if it ends with that."""
        _logger.warning("head worker failed", reason=str(error), request_id=self._asked.request_id)
        match error:
            case HeadAnsweredError(answer=answer):
                return await self._after_refusal(Ending.as_answered(answer))
            case _ if self._is_told:
                return await self._client.end()
            case _ if self._client.committed and self._record is None:
                return await self._client.fail(Ending.of(worker_lost(str(error))))
            case HeadMovedError() | HeadFaultError():
                await self._after_loss(error)
            case RouteFailedError(ending=ending):
                self._refusal = ending
                self._search.on_route_failed(is_unrouted=ending.error.code in _MAY_BE_OVER_SOON)
        return None

    async def _after_loss(self, error: HeadMovedError | HeadFaultError) -> None:
        """Look for another one; whether it fell over this request is for the search to say."""
        match error:
            case HeadUnreachedError():
                await self._search.on_fault()
            case EngineFelledError() | HeadCutOffError() if not self._was_in_line:
                self._search.on_left()
                self._search.on_felled()
            case HeadMovedError() | HeadCutOffError():
                self._search.on_left()
            case HeadFaultError() if self._was_in_line:
                await self._search.on_fault()
            case HeadFaultError():
                await self._search.on_broken_off()

    async def _blame(self) -> web.StreamResponse:
        """Give the request to no other Worker, not even when it comes again soon."""
        _logger.warning("request blamed", request_id=self._asked.request_id)
        self._search.refuse(self._asked.meaning)
        error = request_blamed(QUARANTINE_SECONDS, is_begun=self._client.committed)
        return await self._client.fail(Ending.of(error))

    async def _after_refusal(self, ending: Ending) -> web.StreamResponse | None:
        if self._record is None and ending.status not in _REFUSALS:
            return await self._client.fail(ending)
        if not self._client.committed:
            self._refusal = ending
        if _is_retryable(ending):
            self._search.on_not_ready(is_promised=ending.error.code in _MAY_BE_OVER_SOON)
        else:
            self._search.on_refused()
        return None

    async def _read(self, route: RouteAnswer) -> web.StreamResponse:
        stream, self._was_in_line = HeadStream(self._record), False
        head = WorkerId(route.hops[0].worker_id)
        self._search.times.turn(Doing.AT_WORKERS)
        try:
            async with aclosing(self._call.blocks(head, self._target(route), stream)) as blocks:
                async for block in blocks:
                    if block.is_moved:
                        raise EngineFelledError if block.is_felled else HeadMovedError
                    if block.ends_stream:
                        return await self._end()
                    if block.is_blamed:
                        # One Worker's word: another one has to fall over it as well.
                        raise EngineFelledError
                    if block.failure is not None:
                        return await self._fail(_failure(block.failure, block.payload))
                    await self._take(block, stream)
        finally:
            self._record, self._ahead_at_head = stream.record, 0
            self._search.times.turn(Doing.HERE)
        raise HeadFaultError("Its stream has ended early.")

    async def _take(self, block: Block, stream: HeadStream) -> None:
        self._search.times.turn(Doing.QUEUED if block.ahead else Doing.AT_WORKERS)
        for payload in block.payloads:
            await self._client.deliver(payload)
        stream.delivered(block)
        self._ahead_at_head, self._was_in_line = block.ahead, block.ahead > 0
        self._usage = block.usage or self._usage
        if block.payload is not None or block.token_ids:
            self._search.tries.grew()
            self._refusal = None

    async def _fail(self, ending: Ending) -> web.StreamResponse:
        if _is_retryable(ending):
            raise RouteFailedError(ending)
        return await self._client.fail(ending)

    async def _end(self) -> web.StreamResponse:
        if not self._client.committed:
            raise HeadFaultError("Its stream is empty.")
        return await self._client.end()

    def _target(self, route: RouteAnswer) -> Target:
        headers = {
            **self._asked.headers,
            hdrs.CONTENT_TYPE: "application/json",
            TICKET_HEADER: route.ticket,
            TOKEN_IDS_HEADER: "1",
        }
        body = self._asked.body
        if self._record is not None:
            headers[RESUME_HEADER] = "1"
            body = encode_resume(body, self._record)
        return Target(f"{route.hops[0].url.rstrip('/')}{self._asked.api.url_path}", body, headers)

    @property
    def _is_told(self) -> bool:
        """Whether nothing but the stream's own end is missing."""
        request = self._asked.request
        if not request.stream:
            return self._client.committed
        if self._record is None:
            return False
        if request.include_usage:
            return Sent.USAGE in self._record.choice(0).sent
        choices = map(self._record.choice, range(request.choice_count))
        return all(Sent.FINISH in choice.sent for choice in choices)

    def _ending(self, error: NoHeadError) -> Ending:
        if self._refusal is not None and error.is_refused:
            if not self._client.committed:
                return self._refusal
            return Ending.of(worker_lost(self._refusal.error.message or str(error)))
        return Ending.of(self._error(error))

    def _error(self, error: NoHeadError) -> ApiError:
        if self._client.committed:
            return worker_lost(str(error))
        if error.missing and not self._search.has_failed:
            return model_unavailable(error.detail, RETRY_AFTER_SECONDS)
        return upstream_failed(str(error))


def _failure(failure: Failure, payload: bytes | None) -> Ending:
    headers = {"Retry-After": failure.retry_after} if failure.retry_after else {}
    return Ending(failure.status, payload or b"{}", headers)


def _is_retryable(ending: Ending) -> bool:
    return ending.status in _REFUSALS and ending.error.code != _FULL
