"""The real planner on an instance: from Workers with empty hands until it orders nothing more."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import process_time

from bench.placement.instances import POLICY, Instance, Placement, snapshot
from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import DirectiveKind
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.rebalance import plan_rebalance
from meshnet_tracker.planning.snapshot import (
    HeldShard,
    Holding,
    MeshSnapshot,
    PlannerPolicy,
    RebalanceDirective,
    WorkerView,
)

MOST_PASSES = 400


@dataclass(frozen=True, slots=True)
class Planned:
    """What the planner arrived at, and what that cost."""

    placement: Placement
    first_seconds: float
    """CPU of the first pass, which places everybody."""
    seconds: float
    """CPU of all passes."""
    passes: int
    bytes_moved: int


def plan_from_nothing(instance: Instance, policy: PlannerPolicy = POLICY) -> Planned:
    """Plan and do, pass after pass; every load is ready at once."""
    seen = snapshot(instance)
    seconds: list[float] = []
    moved = 0
    for now in range(MOST_PASSES):
        begun = process_time()
        directives = plan_rebalance(seen, policy, 1000.0 * now)
        seconds.append(process_time() - begun)
        if not directives:
            break
        for directive in directives:
            if directive.kind is DirectiveKind.LOAD_SHARD:
                moved += len(directive.shard_range) * instance.layer_bytes
        seen = obey(seen, directives)
    return Planned(placement_of(seen), seconds[0], sum(seconds), len(seconds), moved)


def obey(seen: MeshSnapshot, directives: tuple[RebalanceDirective, ...]) -> MeshSnapshot:
    """Show the Mesh after everybody did at once what it was told to."""
    workers: Mapping[WorkerId, WorkerView] = {each.worker_id: each for each in seen.workers}
    changed = dict(workers)
    for directive in directives:
        changed[directive.worker_id] = _after(changed[directive.worker_id], directive)
    return replace(seen, workers=tuple(changed[each.worker_id] for each in seen.workers))


def placement_of(seen: MeshSnapshot) -> Placement:
    """Read the runs off; raises ValueError where a Worker holds several."""
    placed: dict[WorkerId, ShardRange] = {}
    for worker in seen.workers:
        if len(worker.held) > 1:
            raise ValueError(f"{worker.worker_id} holds several runs")
        if worker.held:
            placed[worker.worker_id] = worker.held[0].shard_range
    return placed


def _after(worker: WorkerView, directive: RebalanceDirective) -> WorkerView:
    if directive.kind is DirectiveKind.LOAD_SHARD:
        return replace(worker, held=_joined(worker.held, directive))
    held = tuple(
        replace(shard, shard_range=piece)
        for shard in worker.held
        for piece in (
            shard.shard_range.minus(directive.shard_range)
            if shard.variant == directive.variant
            else (shard.shard_range,)
        )
    )
    return replace(worker, held=held)


def _joined(held: tuple[HeldShard, ...], directive: RebalanceDirective) -> tuple[HeldShard, ...]:
    run = directive.shard_range
    others = []
    for shard in held:
        if shard.variant == directive.variant and shard.shard_range.touches(run):
            run = run.union(shard.shard_range)
        else:
            others.append(shard)
    return (*others, HeldShard(directive.variant, run, Holding.READY))
