"""Values for tests: each builder takes what matters in a test and fills in the rest."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from meshnet_common.edge.clock import ManualClock
from meshnet_common.ids import WorkerId
from meshnet_common.presets import ModelPreset
from meshnet_common.protocol.bodies import Body, Epoch
from meshnet_common.protocol.messages import Directive, DirectiveKind, DirectiveReason, RouteHop
from meshnet_common.protocol.sampling import Sampling
from meshnet_common.protocol.tickets import RouteTicket
from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine_port import Command, RunSegment, StepResult
from meshnet_worker.hop_room import HopRoom
from meshnet_worker.kept import KeptActivations
from meshnet_worker.kv_budget import KvBudget, PoolShape
from meshnet_worker.kv_pool import KvRequest
from meshnet_worker.sessions import HopSession, Outlet, SessionTable
from meshnet_worker.shard_weights import ShardWeights
from meshnet_worker.shards import LocalShard, ShardTable
from meshnet_worker.weights.library import WeightsLibrary, WeightsSettings
from tests.common.builders import HIDDEN_SIZE, NOW, hops, preset, ticket

LEASE_SECONDS = 60.0
NO_FOLDER = Path("never-made")
GREEDY = Sampling(temperature=0.0, top_p=1.0, seed=7)
ROW_BYTES = 4 * HIDDEN_SIZE


def hop_session(
    claims: RouteTicket | None = None,
    place: int = 0,
    engine_session: int = 1,
    max_positions: int = 100,
    epoch: Epoch = (1, 0),
    outlet: Outlet | None = None,
) -> HopSession:
    return HopSession(
        ticket=claims or ticket(),
        place=place,
        engine_session=engine_session,
        wire_dtype="float32",
        row_bytes=ROW_BYTES if place else 0,
        max_positions=max_positions,
        opening=epoch,
        epoch=epoch,
        last_heard=NOW,
        sampling=GREEDY,
        outlet=outlet,
    )


def step_result(
    session: int = 1,
    start: int = 0,
    tokens: int = 1,
    flags: int = 0,
    token_id: int | None = None,
    hidden_bytes: int = 0,
) -> StepResult:
    return StepResult(session, (1, 0), start, tokens, flags, hidden_bytes, token_id)


def local_weights() -> ShardWeights:
    """Weights of models whose folders are here: nothing is ever fetched."""
    return ShardWeights(WeightsLibrary(WeightsSettings(NO_FOLDER)))


def local_shard(
    ready: tuple[int, int] | None = (0, 4), model: ModelPreset | None = None
) -> LocalShard:
    model = model or preset()
    held = ShardRange(*ready) if ready else None
    return LocalShard(0, model, model.variants[0], "folder", ready=held)


def directive(
    start: int,
    end: int,
    kind: str = DirectiveKind.LOAD_SHARD,
    epoch: int = 1,
    quantization: str = "float32",
) -> Directive:
    return Directive(
        id=f"d{epoch}",
        epoch=epoch,
        kind=kind,
        model="tiny",
        start_layer=start,
        end_layer=end,
        quantization=quantization,
        reason=DirectiveReason.GAP,
        deadline=NOW + 60,
    )


@dataclass
class RecordingRoom:
    """A Worker's room whose engine and way out only write down what they are given."""

    worker_id: str = "w0"
    ready: tuple[int, int] | None = (0, 4)
    kv_bytes: int = 10_000
    """Whole KV Blocks of one position in each of four Layers; 40 bytes are one in all of them."""
    model: ModelPreset = field(default_factory=preset)
    wait_seconds: float = 0.0
    """How long a Head Worker's Sessions may wait for KV."""
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW))
    steady: ManualClock = field(default_factory=lambda: ManualClock(NOW))
    commands: list[tuple[Command, bytes]] = field(default_factory=list)
    sent: list[tuple[str, Body]] = field(default_factory=list)
    freed: int = 0
    on_freed: Callable[[], object] = lambda: None

    def __post_init__(self) -> None:
        self.shards = ShardTable()
        shard = self.shards.add(self.model, self.model.variants[0], "folder")
        shard.ready = ShardRange(*self.ready) if self.ready else None
        self.kv = KvBudget(block_positions=1)
        self.kept = KeptActivations(1 << 20)
        self.slow_batch_seconds = 0.0
        self.lend(self.kv_bytes)
        self.sessions = SessionTable(LEASE_SECONDS)

    def lend(self, kv_bytes: int) -> None:
        """Let the pools have so many bytes from now on."""
        self.kv.budget_bytes = kv_bytes
        size = self.model.variants[0].kv_bytes_per_token_per_layer
        self.kv.resize(0, [PoolShape(0, ShardRange(0, 4), size)])

    @property
    def room(self) -> HopRoom:
        return HopRoom(
            worker_id=WorkerId(self.worker_id),
            shards=self.shards,
            kv=self.kv,
            sessions=self.sessions,
            clock=self.clock,
            steady=self.steady,
            send=lambda command, payload: self.commands.append((command, payload)),
            dispatch=self._dispatch,
            on_freed=self._on_freed,
            kept=self.kept,
            slow_batch_seconds=lambda: self.slow_batch_seconds,
        )

    @property
    def runs(self) -> list[RunSegment]:
        return [command for command, _ in self.commands if isinstance(command, RunSegment)]

    def bodies_to(self, worker_id: str) -> list[Body]:
        return [body for target, body in self.sent if target == worker_id]

    def _dispatch(self, target: RouteHop, body: Body) -> None:
        self.sent.append((target.worker_id, body))

    def _on_freed(self, _session: HopSession) -> None:
        self.freed += 1
        self.on_freed()


def kv_request(
    session: int = 1,
    positions: int = 1,
    seq: int = 1,
    layers: tuple[int, int] = (0, 4),
    shard: int = 0,
) -> KvRequest:
    return KvRequest(session, shard, ShardRange(*layers), positions, (seq, 0))


def place_of(claims: RouteTicket, worker_id: str) -> int:
    return [hop.worker_id for hop in claims.hops].index(worker_id)


def three_hops() -> RouteTicket:
    return ticket(*hops(1, 2, 1))
