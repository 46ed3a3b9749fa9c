"""A Worker's turn in every Route that passes through it.

Frames come in, segments go to the engine, what the engine computed together leaves in one frame per
next Hop; the Tail Worker's tokens go straight to the Head Worker. Nothing here waits: readers of
links call in, and every answer leaves through `dispatch`.
"""

from collections import deque
from typing import NamedTuple

import structlog

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.bodies import (
    SEGMENT_SAMPLE,
    ActivationFrame,
    CloseBody,
    Epoch,
    ErrorBody,
    KvFigures,
    Segment,
)
from meshnet_worker.engine_port import (
    CloseSession,
    Draw,
    RunSegment,
    SessionFailed,
    Stepped,
    StepResult,
    TruncateSession,
)
from meshnet_worker.hop_room import HopRoom
from meshnet_worker.outgoing import outgoing
from meshnet_worker.sessions import HopSession, SegmentError

KV_PREEMPTED = "kv_preempted"
"""The fault of a Session that gave its KV up to an older one; it goes on later."""

log = structlog.get_logger()


class _Running(NamedTuple):
    """A segment that the engine has: of which epoch, and since when."""

    epoch: Epoch
    since: float


class Hops:
    """Runs and closes Sessions on this Worker."""

    def __init__(self, room: HopRoom) -> None:
        self.preempted = 0
        """Sessions that were closed here for want of KV, since this Worker began."""
        self._room = room
        self._running: dict[int, deque[_Running]] = {}
        self._last_stepped = float("-inf")

    def oldest_step_seconds(self) -> float:
        """How long the oldest segment has been with the engine; 0 when none is."""
        oldest = min((running[0].since for running in self._running.values()), default=None)
        return 0.0 if oldest is None else self._room.clock.now() - oldest

    def engine_silence_seconds(self) -> float:
        """How long the engine has had a segment and finished none; 0 when it has none."""
        return min(self.oldest_step_seconds(), self._room.clock.now() - self._last_stepped)

    def run(self, sender: WorkerId, frame: ActivationFrame) -> int:
        """Hand the segments of a frame to the engine; returns how many still counted."""
        taken = 0
        positions = sum(segment.tokens for segment in frame.header.segments)
        row_bytes = len(frame.hidden) // positions
        offset = 0
        for segment in frame.header.segments:
            hidden = frame.hidden[offset : offset + segment.tokens * row_bytes]
            offset += len(hidden)
            session = self._room.sessions.find(segment.session_id)
            if session is not None and (session.outlet or session.may_send(sender)):
                taken += self._run_segment(session, segment, hidden, frame.header.dtype)
            elif not self._room.sessions.is_buried(segment.session_id):
                log.warning("segment of no session", session=segment.session_id, sender=sender)
        return taken

    def _run_segment(
        self, session: HopSession, segment: Segment, hidden: bytes, dtype: str
    ) -> bool:
        session.last_heard = self._room.clock.now()
        is_rollback = session.is_rolled_back_by(segment)
        try:
            # The fence first: a stale segment is dropped unread, whatever it holds.
            if not session.accept(segment):
                return False
            command = _run_command(session, segment, len(hidden), dtype)
        except SegmentError as error:
            # A fault closes its Session and no other.
            self.fail(session, "bad_segment", str(error))
            return True
        if is_rollback:
            self._truncate(session, segment.start)
        running = self._running.setdefault(session.engine_session, deque())
        running.append(_Running(segment.epoch, session.last_heard))
        self._room.send(command, hidden)
        return True

    def _truncate(self, session: HopSession, position: int) -> None:
        # The engine forgets what waits; what it has run meanwhile comes back as stale.
        self._running.pop(session.engine_session, None)
        self._room.send(TruncateSession(session.engine_session, position), b"")

    def on_stepped(self, stepped: Stepped, payload: bytes) -> None:
        """Send on what a Batch gave: hidden states down the Route, tokens to the Head Worker."""
        self._last_stepped = self._room.clock.now()
        for result in stepped.results:
            self._on_finished(result)
        for target, outlet, body in outgoing(self._room.sessions, stepped.results, payload):
            if outlet is not None:
                outlet(body)
            else:
                self._room.dispatch(target, body)

    def _on_finished(self, result: StepResult) -> None:
        # A Session's segments finish in the order in which they began.
        running = self._running.get(result.session)
        if running is not None and running[0].epoch == result.epoch:
            running.popleft()
            if not running:
                del self._running[result.session]

    def on_session_failed(self, failed: SessionFailed) -> None:
        session = self._room.sessions.of_engine(failed.session)
        if session is not None:
            self.fail(session, "engine_failed", failed.reason)

    def close(self, body: CloseBody) -> None:
        """Free a Session here and on every Hop after this one; it may not even be open yet."""
        session = self._room.sessions.find(body.session_id)
        if session is None or body.epoch >= session.epoch:
            self._room.sessions.bury(body.session_id, body.epoch, self._room.clock.now())
        if session is not None and body.epoch >= session.epoch:
            self._end(session, body)
            self._room.on_freed(session)

    def preempt(self, engine_session: int) -> HopSession | None:
        """Close a Session whose KV Blocks an older one needs; its Head Worker queues it again.

        Nobody hears of what was freed until the older one has it: that is for the caller to tell.
        """
        session = self._room.sessions.of_engine(engine_session)
        if session is not None:
            self._fault(session, KV_PREEMPTED, "An older Session needed its KV Blocks.")
        return session

    def fail(
        self, session: HopSession, code: str, message: str, kv: KvFigures | None = None
    ) -> None:
        """Close a Session because of a fault, and tell its Head Worker."""
        self._fault(session, code, message, kv)
        self._room.on_freed(session)

    def _fault(
        self, session: HopSession, code: str, message: str, kv: KvFigures | None = None
    ) -> None:
        self.preempted += code == KV_PREEMPTED
        close = CloseBody(session_id=session.session_id, epoch=session.epoch)
        self._room.sessions.bury(session.session_id, session.epoch, self._room.clock.now())
        self._end(session, close)
        body = ErrorBody(
            session_id=session.session_id,
            code=code,
            message=message,
            worker_id=self._room.worker_id,
            epoch=session.epoch,
            kv=kv,
        )
        if session.outlet is not None:
            session.outlet(body)
        else:
            self._room.dispatch(session.head, body)

    def pass_on(self, body: ErrorBody) -> None:
        """A fault that a later Hop found; the Head Worker hears of it."""
        session = self._room.sessions.find(body.session_id)
        if session is not None and session.place:
            self._room.dispatch(session.head, body)

    def on_peer_lost(self, worker_id: WorkerId) -> None:
        for session in self._room.sessions:
            if session.outlet is None and session.uses(worker_id):
                self.fail(session, "peer_lost", f"The link to Worker {worker_id} is gone.")

    def on_engine_lost(self) -> None:
        for session in self._room.sessions:
            self.fail(session, "engine_lost", "The engine process ended; it is being restarted.")

    def sweep(self) -> None:
        """Free the Sessions that nobody has fed for a lease."""
        for session in self._room.sessions.expired(self._room.clock.now()):
            self.fail(session, "lease_expired", "Nothing was heard for its lease.")

    def _end(self, session: HopSession, body: CloseBody) -> None:
        """Give back what it holds here, and close it on every Hop after this one."""
        self._room.sessions.remove(session, self._room.clock.now())
        self._running.pop(session.engine_session, None)
        self._room.kv.release(session.engine_session)
        self._room.send(CloseSession(session.engine_session), b"")
        if session.following is not None and session.outlet is None:
            self._room.dispatch(session.following, body)


def _run_command(
    session: HopSession, segment: Segment, hidden_bytes: int, dtype: str
) -> RunSegment:
    if hidden_bytes and dtype != session.wire_dtype:
        raise SegmentError(f"It came in {dtype}; this Route's is {session.wire_dtype}.")
    if hidden_bytes != segment.tokens * session.row_bytes:
        raise SegmentError(f"A position has {session.row_bytes} bytes on this Route.")
    if session.place == 0 and segment.token_ids is None:
        raise SegmentError("The first Hop starts from token ids, and it has none.")
    wants_token = session.ends_model and segment.flags & SEGMENT_SAMPLE
    return RunSegment(
        session=session.engine_session,
        epoch=segment.epoch,
        start=segment.start,
        tokens=segment.tokens,
        flags=segment.flags,
        token_ids=segment.token_ids if session.place == 0 else None,
        draw=_draw(session) if wants_token else None,
    )


def _draw(session: HopSession) -> Draw:
    sampling = session.sampling
    if sampling is None:
        raise SegmentError("It wants a token, but nobody said how to draw.")
    return Draw(sampling.temperature, sampling.top_p, sampling.seed)
