from dataclasses import replace

from meshnet_tracker.planning.snapshot import WorkerView
from tests.tracker.planning.meshes import GB, held, mesh, plan, runs, settled, told, worker


def lined(view: WorkerView, layers_per_second: float) -> WorkerView:
    return replace(view, download_bytes_per_sec=layers_per_second * GB)


def test_a_long_second_copy_is_ordered_in_pieces_of_half_a_minute() -> None:
    pool = worker("a", 20, held(0, 20)), lined(worker("b", 20), 0.1)
    assert told(plan(mesh(20, *pool))) == [("b", "LOAD", 0, 3)]


def test_a_slow_line_loads_one_layer_at_a_time() -> None:
    pool = worker("a", 20, held(0, 20)), lined(worker("b", 20), 0.01)
    assert told(plan(mesh(20, *pool))) == [("b", "LOAD", 0, 1)]


def test_piece_by_piece_all_of_a_second_copy_gets_there() -> None:
    end, _ = settled(mesh(20, worker("a", 20, held(0, 20)), lined(worker("b", 20), 0.1)))
    assert runs(end) == {"a": (0, 20), "b": (0, 20)}


def test_where_lines_were_not_measured_a_load_is_ordered_whole() -> None:
    pool = worker("a", 20, held(0, 20)), worker("b", 20)
    assert told(plan(mesh(20, *pool))) == [("b", "LOAD", 0, 20)]
