"""Twenty seeded cells of the fault table, on one Mesh that gets well after each."""

import os
import random
from itertools import cycle

import pytest

from tests.mesh.faults.asking import Answered, Ask
from tests.mesh.faults.cells import (
    DROP_ANSWER_TOKENS,
    LONG,
    Cell,
    CellRunner,
    Phase,
    Verdict,
    ask_for,
)
from tests.mesh.faults.fault_mesh import PLACES, FaultMesh
from tests.mesh.faults.harm import Fault
from tests.mesh.small_models import ids_of, prompt_of, whole_model_answer

SEED = int(os.environ.get("FAULT_SEED", "4"))
SMALLEST_GAP = 1e-3
PASSING = (Fault.KILL_ENGINE, Fault.CUT_LINKS, Fault.DROP, Fault.RESTART)
"""After these a Worker gets well by itself; an error comes half a minute after the others."""


def seeded_cells(seed: int) -> list[Cell]:
    """Choose twenty: every kind of fault, and those without a replica last.

    Places take turns, so that a Worker that was killed loads while another place is harmed. A Head
    Worker that nobody replaces is left to the benchmark: its KV is held for minutes.
    """
    rng = random.Random(seed)
    kinds = [*Fault, *Fault, Fault.KILL, Fault.FREEZE]
    rng.shuffle(kinds)
    chosen: list[Cell] = []
    for fault, place in zip(kinds, cycle(PLACES), strict=False):
        cells = [Cell(fault, place, phase, True) for phase in Phase]
        chosen.append(rng.choice([cell for cell in cells if cell not in chosen]))
    for fault in (Fault.KILL, *rng.sample(PASSING, 3)):
        chosen.append(Cell(fault, rng.choice(PLACES[1:]), rng.choice([*Phase]), False))
    return chosen


def test_the_choice_is_twenty_cells_of_every_kind() -> None:
    cells = seeded_cells(SEED)
    assert len(cells) == 20
    assert {cell.fault for cell in cells if cell.has_replica} == {*Fault}
    assert {cell.place for cell in cells} == {*PLACES}


@pytest.fixture(scope="module")
def runner(sound_mesh: FaultMesh) -> CellRunner:
    return CellRunner(sound_mesh, random.Random(SEED))


def test_an_undisturbed_answer_is_that_of_the_whole_model(
    sound_mesh: FaultMesh, runner: CellRunner
) -> None:
    ask = Ask(LONG, DROP_ANSWER_TOKENS)
    ids, gap = whole_model_answer(sound_mesh.model, tuple(prompt_of(LONG)), DROP_ANSWER_TOKENS)
    assert gap > SMALLEST_GAP, "a near-tie may be settled either way"
    answered = runner.expected(ask)
    assert isinstance(answered, Answered), answered
    assert ids_of(answered.text) == ids


@pytest.mark.parametrize("cell", seeded_cells(SEED), ids=str)
def test_a_fault_changes_nothing_or_is_told_cleanly(runner: CellRunner, cell: Cell) -> None:
    rng = random.Random(f"{SEED} {cell}")
    result = runner.run(cell, ask_for(cell, rng, streamed=rng.random() < 0.7))
    assert result.verdict is not Verdict.WRONG, result
