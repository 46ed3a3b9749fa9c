from bench.placement.churn_traces import Machine
from bench.placement.churn_worker import Worker
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.snapshot import Holding, VariantKey
from meshnet_worker.pieces import PIECE_SECONDS

KEY, OTHER = VariantKey("m", "f16"), VariantKey("n", "f16")


def ordered(start: int, end: int, layers_each_time: int) -> Worker:
    """Build a Worker that is told to load these Layers, over a line for so many in each piece."""
    speed = layers_each_time / PIECE_SECONDS
    worker = Worker(Machine("w", 20, 1.0, speed * 500_000_000))
    worker.put(KEY, ShardRange(start, end), Holding.ORDERED)
    return worker


def begun(worker: Worker) -> ShardRange | None:
    piece = worker.begin_next()
    return None if piece is None else piece.shard_range


def test_a_long_load_begins_with_a_piece_and_goes_on_beside_it() -> None:
    worker = ordered(2, 9, layers_each_time=3)
    assert begun(worker) == ShardRange(2, 5)
    worker.loading = None
    worker.put(KEY, ShardRange(2, 5), Holding.READY)
    assert begun(worker) == ShardRange(5, 8)


def test_below_what_is_ready_a_load_goes_downward() -> None:
    worker = ordered(2, 9, layers_each_time=3)
    worker.put(KEY, ShardRange(9, 12), Holding.READY)
    assert begun(worker) == ShardRange(6, 9)


def test_one_load_is_under_way_at_a_time_and_only_what_fits_is_begun() -> None:
    worker = ordered(0, 4, layers_each_time=4)
    worker.put(OTHER, ShardRange(0, 17), Holding.DRAINING)
    assert begun(worker) is None
    worker.put(OTHER, ShardRange(0, 17), None)
    assert begun(worker) == ShardRange(0, 4)
    assert begun(worker) is None


def test_what_is_called_off_comes_no_more() -> None:
    worker = ordered(2, 9, layers_each_time=3)
    worker.begin_next()
    worker.call_off(KEY, ShardRange(2, 9))
    assert (worker.loading, worker.held, worker.begin_next()) == (None, [], None)
