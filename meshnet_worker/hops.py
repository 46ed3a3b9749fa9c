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
    ActivationFrame,
    CloseBody,
    Epoch,
    ErrorBody,
    KvFigures,
    ReplayBody,
    Segment,
)
from meshnet_worker.engine_port import (
    CloseSession,
    SessionFailed,
    Stepped,
    StepResult,
    TruncateSession,
)
from meshnet_worker.hop_room import HopRoom
from meshnet_worker.outgoing import outgoing, replay_frame, sign_of_waiting
from meshnet_worker.requeue import MENDABLE
from meshnet_worker.run_commands import run_command
from meshnet_worker.sessions import HopSession, SegmentError

KV_PREEMPTED = "kv_preempted"
"""The fault of a Session that gave its KV up to an older one; it goes on later."""
WAITS_SECONDS = 1.0
"""Whose segment has been here for longer is told of, once a second."""

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
        return 0.0 if oldest is None else self._room.steady.now() - oldest

    def engine_silence_seconds(self) -> float:
        """How long the engine has had a segment and finished none; 0 when it has none."""
        return min(self.oldest_step_seconds(), self._room.steady.now() - self._last_stepped)

    def overdue_seconds(self) -> float:
        """How much longer the running Batch takes than its size explains."""
        return max(0.0, self.engine_silence_seconds() - self._room.slow_batch_seconds())

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
        session.last_heard = self._room.steady.now()
        is_rollback = session.is_rolled_back_by(segment)
        try:
            # The fence first: a stale segment is dropped unread, whatever it holds.
            if not session.accept(segment):
                return False
            command = run_command(session, segment, len(hidden), dtype)
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

    def replay(self, sender: WorkerId, body: ReplayBody) -> None:
        """Send again what this Hop sent, to refill the one after it; what is gone is a fault."""
        session = self._room.sessions.find(body.session_id)
        if session is None or session.following is None or sender != session.head.worker_id:
            log.debug("replay of no session", session=body.session_id, sender=sender)
            return
        if body.epoch < session.epoch:
            return
        session.last_heard = self._room.steady.now()
        rows = self._room.kept.rows(session.engine_session, body.start, body.tokens)
        if rows is None:
            self._tell_fault(session, "not_kept", "It does not have what it sent any more.")
            return
        self._room.dispatch(session.following, replay_frame(session, body, rows))

    def _truncate(self, session: HopSession, position: int) -> None:
        # The engine forgets what waits; what it has run meanwhile comes back as stale.
        self._running.pop(session.engine_session, None)
        self._room.send(TruncateSession(session.engine_session, position), b"")

    def on_stepped(self, stepped: Stepped, payload: bytes) -> None:
        """Send on what a Batch gave: hidden states down the Route, tokens to the Head Worker."""
        self._last_stepped = self._room.steady.now()
        for result in stepped.results:
            self._on_finished(result)
        room = self._room
        for target, outlet, body in outgoing(room.sessions, room.kept, stepped.results, payload):
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
            self.fail(session, failed.code, failed.reason)

    def close(self, body: CloseBody) -> None:
        """Free a Session here and on every Hop after this one; it may not even be open yet."""
        session = self._room.sessions.find(body.session_id)
        if session is None or body.epoch >= session.epoch:
            following = self._room.sessions.take_holder_after(body.session_id)
            if session is None and following is not None:
                self._room.dispatch(following, body)
            self._room.sessions.bury(body.session_id, body.epoch, self._room.steady.now())
        if session is not None and body.epoch >= session.epoch:
            self._end(session)
            self._pass_close_on(session, body.epoch)
            self._room.on_freed(session)

    def let_go(self, session_id: str) -> None:
        """Free a Session here only: its Route goes on from another Head Worker."""
        session = self._room.sessions.find(session_id)
        if session is not None:
            self._end(session)
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
        """Close a Session because of a fault, and tell its Head Worker.

        The Hops after this one keep what they hold where the Route may be mended.
        """
        self._fault(session, code, message, kv)
        self._room.on_freed(session)

    def _fault(
        self, session: HopSession, code: str, message: str, kv: KvFigures | None = None
    ) -> None:
        self.preempted += code == KV_PREEMPTED
        is_kept_after = code in MENDABLE and session.outlet is None
        following = session.following if is_kept_after else None
        now = self._room.steady.now()
        self._room.sessions.bury(session.session_id, session.epoch, now, following)
        self._end(session)
        if not is_kept_after:
            self._pass_close_on(session, session.epoch)
        self._tell_fault(session, code, message, kv)

    def _tell_fault(
        self,
        session: HopSession,
        code: str,
        message: str,
        kv: KvFigures | None = None,
        worker_id: WorkerId | None = None,
    ) -> None:
        body = ErrorBody(
            session_id=session.session_id,
            code=code,
            message=message,
            worker_id=worker_id or self._room.worker_id,
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

    def on_peer_lost(self, worker_id: WorkerId, reason: str) -> None:
        """Tell the Heads of its Sessions, which mend their Routes; what is held is kept."""
        self._on_peer_fault(worker_id, "peer_lost", reason)

    def on_peer_stalled(self, worker_id: WorkerId, reason: str) -> None:
        """A Peer lives, but its engine does not: the same as if it were lost."""
        self._on_peer_fault(worker_id, "peer_stalled", reason)

    def _on_peer_fault(self, worker_id: WorkerId, code: str, reason: str) -> None:
        for session in self._room.sessions:
            if session.outlet is not None or not session.uses(worker_id):
                continue
            if session.head.worker_id == worker_id:
                self._room.sessions.orphan(session, self._room.steady.now())
            else:
                self._tell_fault(session, code, reason, worker_id=worker_id)

    def tell_that_it_drains(self) -> None:
        """Tell the Heads of all Sessions here that this Worker is leaving; they run on."""
        for session in self._room.sessions:
            if session.outlet is None and session.place:
                self._tell_fault(session, "draining", "The Worker is leaving the Mesh.")

    def tell_who_waits(self) -> None:
        """Give the Heads a sign of every Session whose segment waits for its turn here."""
        if self.overdue_seconds() > 0:
            return
        oldest = self._room.steady.now() - WAITS_SECONDS
        for engine_session, running in self._running.items():
            session = self._room.sessions.of_engine(engine_session)
            if session is None or session.outlet is not None or running[0].since > oldest:
                continue
            self._room.dispatch(session.head, sign_of_waiting(session))

    def on_engine_lost(self) -> None:
        for session in self._room.sessions:
            self.fail(session, "engine_lost", "The engine process ended; it is being restarted.")

    def sweep(self) -> None:
        """Free the Sessions that nobody has fed for a lease."""
        for session in self._room.sessions.expired(self._room.steady.now()):
            self.fail(session, "lease_expired", "Nothing was heard for its lease.")

    def _end(self, session: HopSession) -> None:
        """Give back what it holds here."""
        self._room.sessions.remove(session, self._room.steady.now())
        self._running.pop(session.engine_session, None)
        self._room.kv.release(session.engine_session)
        self._room.kept.forget(session.engine_session)
        self._room.send(CloseSession(session.engine_session), b"")

    def _pass_close_on(self, session: HopSession, epoch: Epoch) -> None:
        if session.following is not None and session.outlet is None:
            body = CloseBody(session_id=session.session_id, epoch=epoch)
            self._room.dispatch(session.following, body)
