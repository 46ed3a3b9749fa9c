"""Churn by hand: what of a gap is forced on any planner, and what is the planner's own."""

from collections.abc import Iterable

import pytest

from bench.placement.churn import score
from bench.placement.churn_bound import REACTION_SECONDS, Ledger
from bench.placement.churn_mesh import ChurnMesh
from bench.placement.churn_reload import Live, helping_lines, reload_seconds, two_chains_fit
from bench.placement.churn_traces import (
    LAYER_BYTES,
    Fail,
    Join,
    Leave,
    Machine,
    Model,
    Trace,
    random_trace,
)

MODEL = Model("m", 10, 1.0)


def machine(name: str, capacity: int, seconds_per_layer: float = 1.0) -> Machine:
    return Machine(name, capacity, 100.0, LAYER_BYTES / seconds_per_layer)


def live(each: Machine, layers: Iterable[int] = ()) -> Live:
    return Live(each, frozenset(("m", layer) for layer in layers))


def test_a_reload_is_spread_over_all_lines_in_whole_layers() -> None:
    assert reload_seconds(10, [(1.0, 10), (1.0, 10)]) == 5.0
    assert reload_seconds(3, [(1.0, 10), (0.1, 10)]) == 3.0
    assert reload_seconds(5, [(1.0, 4), (0.1, 10)]) == 10.0


def test_two_chains_of_one_model_cannot_share_a_worker() -> None:
    assert two_chains_fit([10, 10], [10])
    assert not two_chains_fit([20], [10])
    assert not two_chains_fit([8, 8, 4], [10])
    assert two_chains_fit([8, 8, 4, 4], [10])
    assert two_chains_fit([15, 5, 15, 5], [10, 10])


def test_layers_of_a_model_that_is_given_up_take_no_room_from_a_reload() -> None:
    a, b = machine("a", 10), machine("b", 10)
    held = frozenset(("n", layer) for layer in range(8))
    pool = [Live(a, held), live(b, range(4))]
    gap = range(4, 10)
    assert helping_lines(pool, "m", gap, 6) == [(1.0, 2), (1.0, 6)]
    assert helping_lines(pool, "m", gap, 6, {"n"}) == [(1.0, 10), (1.0, 6)]
    assert helping_lines(pool, "m", gap, 6, {"m"}) == [(1.0, 2), (1.0, 10)]


@pytest.mark.parametrize(("weight", "seconds"), [(0.5, 3.0), (2.0, 4.0)])
def test_only_an_uncovered_model_that_is_asked_for_less_is_given_up(
    weight: float, seconds: float
) -> None:
    """Two lines reload six Layers in 3 s; if the other model keeps its Layers, in 4 s."""
    other = Model("n", 10, weight)
    pool = [
        Live(machine("a", 10), frozenset(("n", layer) for layer in range(8))),
        live(machine("b", 10), range(4)),
    ]
    ledger = Ledger([MODEL, other])
    ledger.joined(pool)
    reload = ledger.reloads["m"]
    begun = 2 if weight > MODEL.weight else 0  # Layers of the model that comes first.
    assert reload.ends_at == pytest.approx(REACTION_SECONDS + seconds + begun)


def test_time_without_room_is_forced() -> None:
    ledger = Ledger([MODEL])
    ledger.joined([live(machine("a", 9))])
    ledger.advance(100.0)
    assert ledger.uncovered_seconds == ledger.forced_seconds == 100.0


def test_of_a_cold_start_the_fastest_load_is_forced_and_no_more() -> None:
    ledger = Ledger([MODEL])
    ledger.joined([live(machine("a", 10)), live(machine("b", 10))])
    ledger.advance(100.0)
    assert ledger.uncovered_seconds == 100.0
    assert ledger.forced_seconds == pytest.approx(5.0 + REACTION_SECONDS)


def test_a_gap_that_a_second_copy_could_have_avoided_is_not_forced() -> None:
    a, b = machine("a", 10), machine("b", 10)
    ledger = Ledger([MODEL])
    ledger.joined([live(a), live(b)])
    ledger.changed([live(a, range(10)), live(b)])
    ledger.advance(100.0)
    ledger.went("a", [live(b)], 112.0)
    ledger.advance(200.0)
    assert ledger.uncovered_seconds == 100.0
    assert ledger.forced_seconds == 0.0


def test_a_gap_before_second_copies_could_be_loaded_is_forced_until_the_reload() -> None:
    a, b = machine("a", 10), machine("b", 10)
    ledger = Ledger([MODEL])
    ledger.joined([live(a), live(b)])
    ledger.changed([live(a, range(10)), live(b)])
    ledger.advance(5.0)
    ledger.went("a", [live(b)], 17.0)
    ledger.advance(100.0)
    assert ledger.uncovered_seconds == 95.0
    assert ledger.forced_seconds == pytest.approx(12.0 + 10.0 + REACTION_SECONDS)


def test_what_is_covered_sooner_than_the_bound_is_not_forced_for_longer() -> None:
    a = machine("a", 10)
    ledger = Ledger([MODEL])
    ledger.joined([live(a)])
    ledger.advance(3.0)
    ledger.changed([live(a, range(10))])
    ledger.advance(50.0)
    assert ledger.uncovered_seconds == ledger.forced_seconds == 3.0


def test_uncovered_time_is_weighted_by_demand() -> None:
    other = Model("n", 10, 3.0)
    a = machine("a", 20)
    ledger = Ledger([MODEL, other])
    ledger.joined([live(a)])
    ledger.changed([live(a, range(10))])
    ledger.advance(8.0)
    assert ledger.uncovered_seconds == pytest.approx(8.0 * 3 / 4)


def test_if_one_of_two_models_has_room_the_smaller_demand_is_forced_whichever_is_covered() -> None:
    other = Model("n", 10, 3.0)
    a = machine("a", 10)
    ledger = Ledger([MODEL, other])
    ledger.joined([live(a)])
    ledger.changed([live(a, range(10))])
    ledger.advance(100.0)
    assert ledger.uncovered_seconds == pytest.approx(75.0)
    assert ledger.forced_seconds == pytest.approx(25.0)


def test_a_mesh_that_nothing_happens_to_is_covered_once_it_has_loaded() -> None:
    joins = (Join(0.0, machine("a", 10)), Join(0.0, machine("b", 10)))
    mesh = ChurnMesh(Trace(1, (MODEL,), joins, 600.0))
    mesh.play()
    assert mesh.ledger.missing == {"m": 0}
    assert mesh.ledger.uncovered_seconds < 30.0
    assert mesh.gaps_opened == 0


def test_a_lost_worker_is_replaced_after_its_heartbeats_are_missed() -> None:
    events = (
        Join(0.0, machine("a", 10)),
        Fail(100.0, "a", 10.0),
        Join(200.0, machine("b", 10)),
        Leave(300.0, "b"),
    )
    mesh = ChurnMesh(Trace(1, (MODEL,), events, 400.0))
    mesh.play()
    gaps = [(gap.since, gap.until) for gap in mesh.ledger.gaps]
    assert [since for since, _ in gaps] == [0.0, 100.0, 300.0]
    assert gaps[1][1] == pytest.approx(211.0, abs=1.5)
    assert gaps[2][1] == 400.0
    assert mesh.ledger.forced_seconds >= 0.95 * mesh.ledger.uncovered_seconds


def test_a_trace_and_what_comes_of_it_are_the_same_for_the_same_seed() -> None:
    assert random_trace(7) == random_trace(7) != random_trace(8)
    assert score(random_trace(7)) == score(random_trace(7))


@pytest.mark.parametrize("seed", range(1, 9))
def test_no_plan_opens_a_gap_and_no_more_is_forced_than_was_uncovered(seed: int) -> None:
    played = score(random_trace(seed))
    assert played.gaps_opened == 0
    assert 0.0 <= played.forced_seconds <= played.uncovered_seconds + 1e-6
