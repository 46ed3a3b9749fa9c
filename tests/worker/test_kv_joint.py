"""The daemon counts KV Blocks and the engine holds them: one stream of commands, the same count.

Admission, preemption and the pools' sizes are a Worker's own; the runner is the engine's, without a
model. A runner that lacks a block that was promised would fail a Session or raise.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.bodies import Body, CloseBody, ErrorBody, OpenBody
from meshnet_common.protocol.messages import RouteHop
from meshnet_common.protocol.tickets import RouteTicket
from meshnet_common.shard_range import ShardRange
from meshnet_worker.admission import Admission
from meshnet_worker.engine.device import CPU_BLOCK_POSITIONS
from meshnet_worker.engine.runner import BatchRunner
from meshnet_worker.engine_port import (
    CloseSession,
    Command,
    DropLayers,
    Event,
    ExtendSession,
    OpenSession,
    SessionFailed,
    SizePool,
    TruncateSession,
)
from meshnet_worker.hop_room import HopRoom
from meshnet_worker.hops import Hops
from meshnet_worker.kept import KeptActivations
from meshnet_worker.kv_budget import KvBudget, PoolShape
from meshnet_worker.sessions import HopSession, SessionTable
from meshnet_worker.shards import LocalShard, ShardTable
from tests.common.builders import hop, preset, ticket, variant
from tests.worker.builders import RecordingRoom
from tests.worker.engine.splitting import CPU

LAYERS = 4
VARIANTS = ("float32", "bfloat16")
POSITION_BYTES = 1
ROW_BYTES = CPU_BLOCK_POSITIONS * POSITION_BYTES * LAYERS
"""One block in each Layer of a whole Shard."""
BUDGET_BYTES = 12 * ROW_BYTES
MOST_SESSIONS = 5

SESSIONS = st.integers(1, MOST_SESSIONS)
BLOCKS = st.integers(1, 11)
SHARES = st.integers(0, 8)


class JointWorker:
    """A Worker whose engine is a runner in this process; commands reach it at once."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.faults: list[ErrorBody] = []
        self.engine = BatchRunner({}, CPU, lambda event, _payload: self.events.append(event))
        self.kv = KvBudget(BUDGET_BYTES, CPU_BLOCK_POSITIONS)
        self.shards = ShardTable()
        self.sessions = SessionTable(lease_seconds=1e9)
        self.model = preset(
            *(variant(LAYERS, name, kv_bytes_per_token_per_layer=1) for name in VARIANTS)
        )
        room = HopRoom(
            worker_id=WorkerId("w0"),
            shards=self.shards,
            kv=self.kv,
            sessions=self.sessions,
            clock=RecordingRoom().clock,
            steady=RecordingRoom().clock,
            send=self._command,
            dispatch=self._dispatch,
            on_freed=self._on_freed,
            kept=KeptActivations(1 << 20),
        )
        self.hops = Hops(room)
        self.admission = Admission(room, self.hops)
        self.weights = 0
        self.divide()

    def load(self, name: str) -> None:
        """Load a whole Variant, as the keeper does: the pools make room before and after."""
        ready = self.shards.add(self.model, self.model.variants[VARIANTS.index(name)], "folder")
        self.divide(ready)
        ready.ready = ShardRange(0, LAYERS)
        self.divide()

    def drop(self, shard: LocalShard) -> None:
        """Drop a Variant whose Sessions did not end in time."""
        self.engine.drop(DropLayers(shard.number, 0, LAYERS))
        self.shards.remove(shard)
        self.divide()

    def has_room(self, weights: int) -> bool:
        """The keeper's rule: what Sessions hold stays."""
        shapes = [_shape(shard) for shard in self.shards]
        return weights + self.kv.held_bytes(shapes) <= BUDGET_BYTES

    def divide(self, *loading: LocalShard) -> None:
        self.kv.resize(self.weights, [_shape(shard) for shard in self.shards])
        for shard in self.shards:
            if shard not in loading:
                self._size(shard)

    def truncate(self, session: HopSession) -> None:
        self._command(TruncateSession(session.engine_session, 0), b"")

    def _size(self, shard: LocalShard) -> None:
        self.engine.size_pool(SizePool(shard.number, self.kv.pools[shard.number].blocks))

    def _on_freed(self, _session: HopSession) -> None:
        if self.kv.settle():
            for shard in self.shards:
                self._size(shard)

    def _command(self, command: Command, _payload: bytes) -> None:
        assert isinstance(command, OpenSession | ExtendSession | TruncateSession | CloseSession)
        self.engine.change(command)

    def _dispatch(self, _target: RouteHop, body: Body) -> None:
        if isinstance(body, ErrorBody):
            self.faults.append(body)


class KvJointMachine(RuleBasedStateMachine):
    """Sessions and Shards come, grow and go in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.worker = JointWorker()
        self.tickets: dict[int, RouteTicket] = {}
        self.incarnations = 0

    @initialize(blocks=st.lists(BLOCKS, min_size=2, max_size=MOST_SESSIONS - 1))
    def begin_busy(self, blocks: list[int]) -> None:
        """The first Shard is in use when the second one comes and both have to share."""
        self.worker.load(VARIANTS[0])
        for number, held in enumerate(blocks, 2):
            self.open(number, VARIANTS[0], [0, LAYERS], held)
        self.worker.load(VARIANTS[1])

    @rule(name=st.sampled_from(VARIANTS))
    def load_shard(self, name: str) -> None:
        if self.worker.shards.find("tiny", name) is None:
            self.worker.load(name)

    @rule(name=st.sampled_from(VARIANTS))
    def drop_shard(self, name: str) -> None:
        shard = self.worker.shards.find("tiny", name)
        if shard is None:
            return
        self.worker.drop(shard)
        failed = [self.worker.sessions.of_engine(number) for number in self._failed()]
        for session in filter(None, failed):
            assert session.ticket.quantization == name
            self.worker.hops.fail(session, "engine_failed", "Its Layers were dropped.")
        assert not any(s.ticket.quantization == name for s in self.worker.sessions)

    @rule(share=SHARES)
    def take_weights(self, share: int) -> None:
        """More or less of the Budget is for weights, whose pools shrink or grow."""
        if self.worker.has_room(share * ROW_BYTES):
            self.worker.weights = share * ROW_BYTES
            self.worker.divide()

    @rule(
        number=SESSIONS,
        name=st.sampled_from(VARIANTS),
        bounds=st.lists(st.integers(0, LAYERS), min_size=2, max_size=2, unique=True).map(sorted),
        blocks=BLOCKS,
    )
    def open(self, number: int, name: str, bounds: list[int], blocks: int) -> None:
        """Open a Session on some Layers, after it was closed if it was open."""
        start, end = bounds
        if self.worker.shards.find("tiny", name) is None:
            return
        self.incarnations += 1
        before, after = ([hop("a", 0, start)] if start else []), [hop("w0", start, end)]
        rest = [hop("z", end, LAYERS)] if end < LAYERS else []
        self.tickets[number] = ticket(
            *before,
            *after,
            *rest,
            session_id=f"s{number}",
            admission_seq=number,
            incarnation=self.incarnations,
            quantization=name,
            layer_count=LAYERS,
        )
        self._ask(number, blocks)

    @rule(number=SESSIONS, blocks=BLOCKS)
    def extend(self, number: int, blocks: int) -> None:
        if self.worker.sessions.find(f"s{number}") is not None:
            self._ask(number, blocks)

    @rule(number=SESSIONS)
    def truncate(self, number: int) -> None:
        session = self.worker.sessions.find(f"s{number}")
        if session is not None:
            self.worker.truncate(session)

    @rule(number=SESSIONS)
    def close(self, number: int) -> None:
        session = self.worker.sessions.find(f"s{number}")
        if session is not None:
            self.worker.hops.close(CloseBody(session_id=session.session_id, epoch=session.epoch))

    @invariant()
    def the_engine_never_lacks_a_block_that_was_promised(self) -> None:
        assert not self.worker.events

    @invariant()
    def both_count_the_same(self) -> None:
        free = self.worker.engine.free_blocks()
        for number, pool in self.worker.kv.pools.items():
            for layer in range(LAYERS):
                promised = pool.free(ShardRange(layer, layer + 1))
                assert free.get(number, {}).get(layer, pool.blocks) == promised
        assert set(free) <= set(self.worker.kv.pools)

    @invariant()
    def no_more_is_held_than_is_lent(self) -> None:
        rows = sum(pool.blocks for pool in self.worker.kv.pools.values())
        assert self.worker.weights + rows * ROW_BYTES <= BUDGET_BYTES

    def teardown(self) -> None:
        for session in tuple(self.worker.sessions):
            self.worker.hops.close(CloseBody(session_id=session.session_id, epoch=session.epoch))
        self.both_count_the_same()
        for shard in self.worker.shards:
            blocks = self.worker.kv.pools[shard.number].blocks
            free = self.worker.engine.free_blocks().get(shard.number, {})
            assert set(free.values()) <= {blocks}
            self.worker.drop(shard)
        assert not self.worker.events
        assert self.worker.engine.free_blocks() == {}
        assert self.worker.kv.free_bytes == BUDGET_BYTES - self.worker.weights

    def _ask(self, number: int, blocks: int) -> None:
        """Ask for KV: only younger ones give way, and only to somebody who then has it."""
        # One position short of whole blocks, which both sides have to round alike.
        positions = blocks * CPU_BLOCK_POSITIONS - 1
        claims = self.tickets[number]
        self.worker.faults.clear()
        self.worker.admission.open(claims, OpenBody(ticket="signed", max_positions=positions))
        displaced = [fault for fault in self.worker.faults if fault.session_id != f"s{number}"]
        assert all(int(fault.session_id[1:]) > number for fault in displaced)
        if displaced:
            assert self.worker.sessions.find(f"s{number}") is not None

    def _failed(self) -> list[int]:
        failed = [e.session for e in self.worker.events if isinstance(e, SessionFailed)]
        assert len(failed) == len(self.worker.events)
        self.worker.events.clear()
        return failed


def _shape(shard: LocalShard) -> PoolShape:
    return PoolShape(shard.number, ShardRange(0, LAYERS), POSITION_BYTES)


KvJointMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestKvJoint = KvJointMachine.TestCase
