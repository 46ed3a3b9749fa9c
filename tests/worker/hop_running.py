"""One Worker's Hops with everything that leaves them written down."""

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.bodies import (
    ErrorBody,
)
from meshnet_worker.engine_port import Stepped
from meshnet_worker.hops import Hops
from meshnet_worker.sessions import HopSession
from tests.common.builders import ticket
from tests.worker.builders import (
    RecordingRoom,
    hop_session,
    kv_request,
    place_of,
    step_result,
    three_hops,
)

HEAD, MIDDLE, TAIL = WorkerId("w0"), WorkerId("w1"), WorkerId("w2")


class Running:
    """A Worker in the Route w0, w1, w2 with some Sessions open."""

    def __init__(self, worker_id: str, *session_ids: str) -> None:
        self.recording = RecordingRoom(worker_id=worker_id)
        self.hops = Hops(self.recording.room)
        self.sessions = [self.open(session_id) for session_id in session_ids or ("s1",)]

    def open(self, session_id: str) -> HopSession:
        table = self.recording.sessions
        claims = ticket(*three_hops().hops, session_id=session_id)
        place = place_of(claims, self.recording.worker_id)
        session = hop_session(claims, place, table.new_engine_session())
        layers = session.hop.shard_range
        self.recording.kv.reserve(
            kv_request(session.engine_session, 10, layers=(layers.start, layers.end))
        )
        table.add(session)
        return session

    def stepped(self, *tokens: int | None, tokens_of_each: int = 1) -> None:
        results = tuple(
            step_result(session.engine_session, 0, tokens_of_each, token_id=token)
            for session, token in zip(self.sessions, tokens, strict=True)
        )
        self.hops.on_stepped(Stepped(results, 0.0, 0.0), b"")

    @property
    def open_ids(self) -> list[str]:
        return [session.session_id for session in self.recording.sessions]

    def faults(self) -> list[ErrorBody]:
        return [body for body in self.recording.bodies_to("w0") if isinstance(body, ErrorBody)]
