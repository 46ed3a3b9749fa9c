from meshnet_tracker.planning.chains import chains_of
from meshnet_tracker.planning.draft import Draft
from meshnet_tracker.planning.snapshot import WorkerView
from tests.tracker.planning.meshes import NO_HEADROOM, NOW, held, mesh, worker


def chains(layers: int, *workers: WorkerView) -> list[list[str]]:
    draft = Draft.of(mesh(layers, *workers), NO_HEADROOM, NOW)
    found = chains_of(draft.variants[0].holders, layers)
    return [[holder.worker_id for holder in chain] for chain in found]


def test_an_exact_copy_is_seen_before_one_that_overlaps() -> None:
    pool = (
        worker("a", 22, held(0, 14)),
        worker("b", 22, held(14, 28)),
        worker("c", 22, held(0, 22)),
    )
    assert chains(28, *pool) == [["a", "b"]]
    assert chains(28, *pool[1:]) == [["c", "b"]]


def test_of_equal_overlaps_the_chain_with_fewest_hops_is_taken() -> None:
    pool = (worker("all", 8, held(0, 8)), worker("a", 4, held(0, 4)), worker("b", 4, held(4, 8)))
    assert chains(8, *pool) == [["all"], ["a", "b"]]


def test_the_fastest_workers_make_the_first_chain() -> None:
    pool = (
        worker("slow", 4, held(0, 4)),
        worker("fast", 4, held(0, 4), speed=2.0),
        worker("end", 4, held(4, 8)),
    )
    assert chains(8, *pool) == [["fast", "end"]]


def test_without_full_coverage_there_is_no_chain() -> None:
    assert chains(8, worker("a", 4, held(0, 4)), worker("b", 3, held(5, 8))) == []
