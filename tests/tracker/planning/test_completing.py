from dataclasses import replace

from meshnet_tracker.planning.completing import complete, is_begun_as_placed
from meshnet_tracker.planning.draft import Draft
from meshnet_tracker.planning.snapshot import Holding, MeshSnapshot, WorkerView
from tests.tracker.planning.meshes import (
    GB,
    NO_HEADROOM,
    NOW,
    held,
    mesh,
    runs,
    settled,
    told,
    worker,
)


def orders(snapshot: MeshSnapshot) -> list[tuple[str, str, int, int]]:
    draft = Draft.of(snapshot, NO_HEADROOM, NOW)
    complete(draft)
    return told(draft.directives)


def test_who_loaded_the_first_part_of_its_copy_loads_the_rest() -> None:
    pool = worker("a", 8, held(4, 8)), worker("b", 8, held(0, 4))
    assert orders(mesh(8, *pool)) == [("a", "LOAD", 0, 4), ("b", "LOAD", 4, 8)]


def test_while_a_gap_is_open_nothing_is_completed() -> None:
    assert orders(mesh(8, worker("a", 8, held(5, 8)), worker("b", 8, held(0, 4)))) == []


def test_who_still_loads_is_waited_for() -> None:
    loading = worker("b", 8, held(0, 4, Holding.LOADING))
    assert orders(mesh(8, worker("a", 8, held(4, 8)), loading)) == [("a", "LOAD", 0, 4)]


def test_a_run_that_is_no_part_of_the_placement_means_that_nobody_is_on_the_way_there() -> None:
    pool = worker("a", 5, held(0, 5)), worker("b", 5, held(2, 7)), worker("c", 5, held(3, 8))
    assert orders(mesh(8, *pool)) == []


def test_a_placement_is_followed_where_it_is_known_how_speeds_depend_on_layers() -> None:
    pool = worker("a", 4, held(0, 3)), worker("b", 4, held(4, 8, Holding.LOADING))
    known = tuple(replace(each, layer_rates=(each.speed,) * 8) for each in pool)
    astray = replace(known[0], held=(held(1, 5),)), known[1]
    assert [begun(mesh(8, *each)) for each in (pool, known, astray)] == [False, True, False]


def begun(snapshot: MeshSnapshot) -> bool:
    draft = Draft.of(snapshot, NO_HEADROOM, NOW)
    return is_begun_as_placed(draft, draft.variants[0])


def test_a_fresh_start_over_measured_lines_ends_at_the_placement_of_one_over_unmeasured() -> None:
    plain = [worker(f"{i}", n) for i, n in enumerate((40, 40, 20, 20, 10, 10))]
    end, _ = settled(mesh(70, *plain))
    measured, _ = settled(mesh(70, *(_with_line(each) for each in plain)))
    assert runs(measured) == runs(end)


def _with_line(view: WorkerView) -> WorkerView:
    return replace(view, download_bytes_per_sec=0.1 * GB)
