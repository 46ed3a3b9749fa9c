"""A Mesh under churn, in simulated time: the real planner, Workers that load and drain.

The Tracker plans when something changed, at most once a second. A Worker loads what it is told one
Shard after the other at its line's speed, as soon as memory allows, in pieces as Workers do; each
is ready a probe later. What is dropped before it is there is called off as soon as its Worker hears
of it. A drop of what is ready drains for as long as Sessions last, and is committed only if the
Tracker still finds all of its Layers ready elsewhere, else it stays. A failed Worker stays in the
Tracker's view until its Heartbeats are missed; what it was told meanwhile is lost with it.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random

from bench.placement.churn_bound import Ledger
from bench.placement.churn_reload import Layer, Live
from bench.placement.churn_traces import (
    LAYER_BYTES,
    Event,
    Fail,
    Join,
    Leave,
    Machine,
    Model,
    Trace,
)
from bench.placement.churn_worker import Worker
from meshnet_common.presets import ModelPreset, Variant
from meshnet_common.protocol.messages import DirectiveKind
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.rebalance import plan_rebalance
from meshnet_tracker.planning.snapshot import (
    Demand,
    HeldShard,
    Holding,
    MeshSnapshot,
    PlannerPolicy,
    RebalanceDirective,
    VariantKey,
)

POLICY = PlannerPolicy(headroom_bytes=0)
PASS_PAUSE_SECONDS = 1.0
TELLING_SECONDS = 0.2
PROBE_SECONDS = 0.5
MOST_DRAIN_SECONDS = 10.0


class ChurnMesh:
    """Plays a trace; `ledger` has what came of it."""

    def __init__(self, trace: Trace, tell: Callable[[str], None] = lambda _: None) -> None:
        self.trace = trace
        self._tell = tell
        self.ledger = Ledger(trace.models)
        self.random = Random(trace.seed)
        self.presets = tuple(_preset(model) for model in trace.models)
        self.demand = tuple(
            Demand(VariantKey(model.name, "f16"), model.weight) for model in trace.models
        )
        self.workers: dict[str, Worker] = {}
        self.gaps_opened = 0
        self.passes = 0
        self.directives = 0
        self.loaded_layers = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._now = 0.0
        self._plans_at: float | None = None
        self._planned_at = -PASS_PAUSE_SECONDS

    def play(self, events: Iterable[Event] | None = None, until: float | None = None) -> None:
        """Play these events, or the trace's, and go on until the end."""
        for event in self.trace.events if events is None else events:
            self._at(event.at, partial(self._happen, event))
        end = self.trace.seconds if until is None else until
        while self._events and self._events[0][0] <= end:
            moment, _, act = heappop(self._events)
            self._pass_to(moment)
            act()
        self._pass_to(end)

    def snapshot(self) -> MeshSnapshot:
        """Show what the Tracker knows."""
        workers = tuple(self.workers[name].view for name in sorted(self.workers))
        return MeshSnapshot(self.presets, workers, demand=self.demand)

    def _pass_to(self, moment: float) -> None:
        self.ledger.advance(moment)
        self._now = moment

    def _say(self, text: str) -> None:
        self._tell(f"{self._now:8.1f} {text}  missing {self.ledger.missing}")

    def _at(self, moment: float, act: Callable[[], None]) -> None:
        heappush(self._events, (moment, next(self._order), act))

    def _happen(self, event: Event) -> None:
        match event:
            case Join():
                self._join(event.machine)
            case Leave():
                self._leave(event.name)
            case Fail():
                self._fail(event.name, event.unseen_seconds)
        self._say(str(event))

    def _live(self) -> list[Live]:
        return [Live(each.machine, each.ready) for each in self.workers.values() if each.alive]

    def _join(self, machine: Machine) -> None:
        self.workers[machine.name] = Worker(machine)
        self.ledger.joined(self._live())
        self._ring()

    def _leave(self, name: str) -> None:
        """Go at once: what it holds is draining from now on, so it serves nobody new."""
        self.workers.pop(name)
        self.ledger.went(name, self._live(), self._now)
        self._ring()

    def _fail(self, name: str, unseen_seconds: float) -> None:
        worker = self.workers[name]
        worker.alive = False
        self.ledger.went(name, self._live(), self._now + unseen_seconds)
        self._at(self._now + unseen_seconds, lambda: self._miss(name))

    def _miss(self, name: str) -> None:
        self.workers.pop(name)
        self._ring()

    def _ring(self) -> None:
        if self._plans_at is None:
            self._plans_at = max(self._now, self._planned_at + PASS_PAUSE_SECONDS)
            self._at(self._plans_at, self._plan)

    def _plan(self) -> None:
        self._plans_at = None
        self._planned_at = self._now
        directives = plan_rebalance(self.snapshot(), POLICY, self._now)
        self.passes += 1
        self.directives += len(directives)
        before = self._ready_counts()
        for directive in directives:
            self._issue(directive)
            self._say(_text(directive))
        self.gaps_opened += _opened(self.trace.models, before, self._ready_counts())
        if directives:
            self.ledger.changed(self._live())
            self._ring()

    def _issue(self, directive: RebalanceDirective) -> None:
        worker = self.workers[directive.worker_id]
        key, run = directive.variant, directive.shard_range
        if directive.kind is DirectiveKind.LOAD_SHARD:
            worker.put(key, run, Holding.ORDERED)
            self._at(self._now + TELLING_SECONDS, lambda: self._load_next(worker))
            return
        there = {layer for name, layer in worker.ready if name == key.model}
        coming = there.isdisjoint(run.layers)
        worker.put(key, run, Holding.DRAINING)
        if coming:
            self._at(self._now + TELLING_SECONDS, lambda: self._call_off(worker, key, run))
            return
        drains = self.random.uniform(TELLING_SECONDS, MOST_DRAIN_SECONDS)
        self._at(self._now + drains, lambda: self._commit_drop(worker, key, run))

    def _call_off(self, worker: Worker, key: VariantKey, run: ShardRange) -> None:
        worker.call_off(key, run)
        self._load_next(worker)
        self._ring()

    def _load_next(self, worker: Worker) -> None:
        piece = worker.begin_next() if worker.alive else None
        if piece is None:
            return
        seconds = len(piece.shard_range) / worker.machine.layers_per_second + PROBE_SECONDS
        self._at(self._now + seconds, lambda: self._loaded(worker, piece))

    def _loaded(self, worker: Worker, piece: HeldShard) -> None:
        if worker.loading is not piece or worker.machine.name not in self.workers:
            return  # It is gone, or the load was called off.
        worker.loading = None
        if not worker.alive:
            return
        self.loaded_layers += len(piece.shard_range)
        worker.put(piece.variant, piece.shard_range, Holding.READY)
        self._say(f"{worker.machine.name} has {piece.variant.model} {piece.shard_range}")
        self.ledger.changed(self._live())
        self._load_next(worker)
        self._ring()

    def _commit_drop(self, worker: Worker, key: VariantKey, run: ShardRange) -> None:
        if not worker.alive or worker.machine.name not in self.workers:
            return
        ready = self._ready_counts()
        whole = all(ready.get((key.model, layer), 0) for layer in run.layers)
        layers = next(model.layers for model in self.trace.models if model.name == key.model)
        serves = all(
            ready.get((key.model, layer), 0) or layer in run.layers for layer in range(layers)
        )
        worker.put(key, run, None if whole or not serves else Holding.READY)
        self.ledger.changed(self._live())
        self._load_next(worker)
        self._ring()

    def _ready_counts(self) -> dict[Layer, int]:
        """Count who serves each Layer, as the Tracker knows it."""
        counts: dict[Layer, int] = {}
        for worker in self.workers.values():
            for layer in worker.ready:
                counts[layer] = counts.get(layer, 0) + 1
        return counts


def _opened(models: Sequence[Model], before: dict[Layer, int], after: dict[Layer, int]) -> int:
    """Count the models that were covered and are so no more."""
    return sum(
        all((model.name, layer) in before for layer in range(model.layers))
        and not all((model.name, layer) in after for layer in range(model.layers))
        for model in models
    )


def _text(directive: RebalanceDirective) -> str:
    kind = directive.kind.removesuffix("_SHARD")
    where = f"{directive.variant.model} {directive.shard_range}"
    return f"  {directive.worker_id} {kind} {where} {directive.reason} {directive.why}"


def _preset(model: Model) -> ModelPreset:
    variant = Variant(
        quantization="f16",
        digest=f"sha256:{model.name}",
        layer_bytes=(LAYER_BYTES,) * model.layers,
        embedding_bytes=0,
        head_bytes=0,
        kv_bytes_per_token_per_layer=1,
        wire_dtype="bfloat16",
    )
    return ModelPreset(
        name=model.name,
        source="churn",
        architecture="llama",
        hidden_size=8,
        vocabulary_size=16,
        context_tokens=32,
        default_quantization="f16",
        variants=(variant,),
    )
