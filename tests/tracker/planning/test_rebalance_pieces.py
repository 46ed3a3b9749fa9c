"""Plans while loads are ready piece by piece, and end in any order."""

import os
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.coming import ON_ITS_WAY
from meshnet_tracker.planning.snapshot import HeldShard, Holding, MeshSnapshot, WorkerView
from tests.tracker.planning.meshes import NO_HEADROOM, assert_sound, done, issued, plan, settled
from tests.tracker.planning.test_rebalance_several import churned

QUICK = settings(deadline=None, max_examples=2000 if os.environ.get("CI") else 60)
MOST_PASSES = 12


def loaded_on(view: WorkerView, data: st.DataObject) -> WorkerView:
    """Show a Worker when a drawn part of each load is ready."""
    held: list[HeldShard] = []
    for shard in view.held:
        run = shard.shard_range
        count = data.draw(st.integers(0, len(run))) if shard.holding in ON_ITS_WAY else 0
        if not count:
            held.append(shard)
            continue
        ready = [e for e in held if e.variant == shard.variant and e.holding is Holding.READY]
        before = next((e for e in ready if e.shard_range.end == run.start), None)
        if before is not None:
            held.remove(before)
        piece = ShardRange(run.start, run.start + count)
        whole = piece.union(before.shard_range) if before else piece
        held.append(HeldShard(shard.variant, whole, Holding.READY))
        held += [HeldShard(shard.variant, rest, Holding.LOADING) for rest in run.minus(piece)]
    return replace(view, held=tuple(held))


@QUICK
@given(churned(), st.data())
def test_plans_are_sound_and_come_to_rest_while_loads_are_ready_in_pieces(
    snapshot: MeshSnapshot, data: st.DataObject
) -> None:
    for _ in range(data.draw(st.integers(1, MOST_PASSES))):
        directives = plan(snapshot)
        after = issued(snapshot, directives)
        assert_sound(snapshot, directives, after, NO_HEADROOM)
        names = [view.worker_id for view in after.workers]
        ended = data.draw(st.sets(st.sampled_from(names))) if names else set()
        workers = tuple(loaded_on(view, data) for view in done(after, ended).workers)
        snapshot = replace(after, workers=workers)
    settled(done(snapshot))
