"""The calls of Workers, taken to the database together with all others that come in a moment.

The token is checked in the same transaction that does what is asked, so that an old one is void
everywhere at once, whichever Tracker took the new registration.
"""

from collections.abc import Sequence

from meshnet_common.edge.clock import Clock
from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import DirectiveState, Heartbeat, RegisterWorker
from meshnet_tracker.batches import Batches
from meshnet_tracker.records import Beat, Joining, Poll, PollFound, Reported, Reporting
from meshnet_tracker.store.errors import BadTokenError, UnknownDirectiveError
from meshnet_tracker.store.heartbeats import Heard
from meshnet_tracker.store.store import Store

BEAT_PAUSE_SECONDS = 0.03
"""A turn costs 2 to 3 ms by itself, however many share it."""

POLL_PAUSE_SECONDS = 0.05
RARE_PAUSE_SECONDS = 0.25
"""Between turns of what a Worker does now and then, so that heartbeats have the database."""


class WorkerCalls:
    """Everything raises DatabaseUnavailableError, and BadTokenError where a token is shown."""

    def __init__(self, store: Store, clock: Clock, load_deadline_seconds: float) -> None:
        self._store = store
        self._clock = clock
        self._load_deadline_seconds = load_deadline_seconds
        self._beats = Batches(self._record, BEAT_PAUSE_SECONDS)
        self._joining = Batches(self._register, RARE_PAUSE_SECONDS)
        self._leaving = Batches(self._leave, RARE_PAUSE_SECONDS)
        self._known = Batches(store.callers.know)
        self._polls = Batches(store.callers.poll, POLL_PAUSE_SECONDS)
        self._reports = Batches(self._report, RARE_PAUSE_SECONDS)

    async def beat(self, worker_id: WorkerId, token_sha256: str, heartbeat: Heartbeat) -> bool:
        """Take a heartbeat; answers whether more than the Worker's load has changed."""
        heard = await self._beats.submit(Beat(worker_id, token_sha256, heartbeat))
        _check(heard is not Heard.REFUSED)
        return heard is Heard.NEWS

    async def register(self, registration: RegisterWorker, token_sha256: str) -> None:
        await self._joining.submit(Joining(registration, token_sha256))

    async def leave(self, worker_id: WorkerId, token_sha256: str) -> None:
        _check(await self._leaving.submit((worker_id, token_sha256)))

    async def authenticate(self, worker_id: WorkerId, token_sha256: str) -> None:
        _check(await self._known.submit((worker_id, token_sha256)))

    async def poll(self, poll: Poll) -> PollFound:
        """Read the directives that a Worker has not seen."""
        found = await self._polls.submit(poll)
        _check(found.is_known)
        return found

    async def report(self, reporting: Reporting) -> DirectiveState:
        """Take a report on a directive; answers its state now. Raises UnknownDirectiveError."""
        reported = await self._reports.submit(reporting)
        _check(reported.is_known)
        if reported.state is None:
            raise UnknownDirectiveError(reporting.directive_id)
        return reported.state

    async def _record(self, beats: Sequence[Beat]) -> Sequence[Heard]:
        now = self._clock.now()
        return await self._store.heartbeats.record(beats, now + self._load_deadline_seconds, now)

    async def _report(self, reporting: Sequence[Reporting]) -> Sequence[Reported]:
        now = self._clock.now()
        return await self._store.callers.report(reporting, now + self._load_deadline_seconds, now)

    async def _register(self, joining: Sequence[Joining]) -> Sequence[None]:
        await self._store.callers.register(joining, self._clock.now())
        return [None] * len(joining)

    async def _leave(self, callers: Sequence[tuple[WorkerId, str]]) -> Sequence[bool]:
        return await self._store.callers.leave(callers, self._clock.now())


def _check(is_known: bool) -> None:
    if not is_known:
        raise BadTokenError("Register again with POST /v1/workers.")
