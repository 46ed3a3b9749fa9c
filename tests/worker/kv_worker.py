"""One Worker in a Mesh without wires: its Hops are real, its engine is a queue that checks.

Position p of every Session has token id p, and its row of hidden states is p too.
"""

from collections import deque
from collections.abc import Callable

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.bodies import Body
from meshnet_common.shard_range import ShardRange
from meshnet_worker.admission import Admission
from meshnet_worker.engine_port import (
    ArmSession,
    CloseSession,
    Command,
    OpenSession,
    RunSegment,
    Stepped,
    StepResult,
    TruncateSession,
)
from meshnet_worker.hop_room import HopRoom
from meshnet_worker.hops import Hops
from meshnet_worker.kept import KeptActivations
from meshnet_worker.kv_budget import KvBudget, PoolShape
from meshnet_worker.sessions import SessionTable
from meshnet_worker.waiting_room import WaitingRoom
from tests.common.builders import HIDDEN_SIZE
from tests.worker.builders import RecordingRoom

LAYERS = 4
BLOCK_POSITIONS = 4
POOL_BLOCKS = {"w0": 6, "w1": 5, "w2": 8}
CAPACITY = min(POOL_BLOCKS.values()) * BLOCK_POSITIONS

Send = Callable[[str, str, Body], None]
"""From a Worker to another or itself."""


class SimWorker:
    """One Worker: real Hops and admission, an engine that checks that no position is missing."""

    def __init__(self, worker_id: str, send: Send, now: Callable[[], float]) -> None:
        self.worker_id = worker_id
        base = RecordingRoom(worker_id)
        self.kv = KvBudget(block_positions=BLOCK_POSITIONS)
        self.position_bytes = base.model.variants[0].kv_bytes_per_token_per_layer
        self.lent = 0
        self.lend(0)
        self.free_at_first = self.kv.free_bytes
        self.sessions = SessionTable(lease_seconds=1e9)
        self.waiting = WaitingRoom(deadline_seconds=1e9)
        self.engine: deque[RunSegment] = deque()
        """Segments that wait to run; what they hold was checked when they came."""
        self.computed: dict[int, int] = {}
        self.arms: dict[int, ArmSession] = {}
        self.answered: dict[int, int] = {}
        """Until which position the answers are known, of Sessions that are armed."""
        room = HopRoom(
            worker_id=WorkerId(worker_id),
            shards=base.shards,
            kv=self.kv,
            sessions=self.sessions,
            clock=base.clock,
            steady=base.clock,
            send=self._command,
            dispatch=lambda target, body: send(worker_id, target.worker_id, body),
            on_freed=lambda _session: self._on_freed(now()),
            kept=KeptActivations(1 << 20),
        )
        self.hops = Hops(room)
        self.admission = Admission(room, self.hops)

    def lend(self, more_blocks: int) -> None:
        """Have so many blocks beyond the first ones, as soon as Sessions let the pools shrink."""
        self.lent = POOL_BLOCKS[self.worker_id] + more_blocks
        self.kv.budget_bytes = self.lent * BLOCK_POSITIONS * self.position_bytes * LAYERS
        self.kv.resize(0, [PoolShape(0, ShardRange(0, LAYERS), self.position_bytes)])

    def step(self) -> None:
        """Run the oldest segment of the engine."""
        run = self.engine.popleft()
        assert run.start == self.computed[run.session], "a position was never computed"
        self.computed[run.session] += run.tokens
        session = self.sessions.of_engine(run.session)
        is_tail = session is not None and session.ends_model
        hidden = b"" if is_tail else rows(run.start, run.tokens)
        token = self._draw(run) if run.draws else None
        result = StepResult(
            run.session,
            run.epoch,
            run.start,
            run.tokens,
            run.flags,
            len(hidden),
            token,
            run.last_hop,
        )
        self.hops.on_stepped(Stepped((result,), 0.0, 0.0), hidden)

    def _draw(self, run: RunSegment) -> int | None:
        position = run.start + run.tokens
        if run.epoch < self.arms[run.session].opening:
            return None
        assert position <= self.answered[run.session], "a token before it was never known"
        self.answered[run.session] = position + 1
        return position

    def _on_freed(self, now: float) -> None:
        self.kv.settle()
        self.waiting.freed(now)

    def _command(self, command: Command, payload: bytes) -> None:
        match command:
            case OpenSession(session=session):
                self.computed[session] = 0
            case ArmSession(session=session, history=history):
                assert history is not None
                begins, ends = history.answer_start, history.answer_start + len(history.answer_ids)
                assert history.answer_ids == tuple(range(begins, ends))
                self.arms[session], self.answered[session] = command, ends
            case RunSegment():
                positions = tuple(range(command.start, command.start + command.tokens))
                assert payload == (b"" if command.token_ids else rows(positions[0], len(positions)))
                assert command.token_ids in (None, positions)
                self.engine.append(command)
            case CloseSession(session=session):
                del self.computed[session]
                self.engine = deque(run for run in self.engine if run.session != session)
            case TruncateSession(session=session, position=position):
                self.computed[session] = min(self.computed[session], position)
                self.engine = deque(run for run in self.engine if run.session != session)
            case _:
                pass


def rows(start: int, tokens: int) -> bytes:
    """Hidden states that say which positions they are of."""
    return b"".join(position.to_bytes(4 * HIDDEN_SIZE) for position in range(start, start + tokens))
