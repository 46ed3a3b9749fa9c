"""Twenty seeded cells of the fault table, on one Mesh that gets well after each."""

import os
import random

import pytest

from tests.mesh.faults.asking import Answered
from tests.mesh.faults.cells import (
    Cell,
    CellRunner,
    Verdict,
    all_cells,
    ask_for,
    every_ask,
)
from tests.mesh.faults.fault_mesh import FaultMesh
from tests.mesh.small_models import ids_of, prompt_of, whole_model_answer

SEED = int(os.environ.get("FAULT_SEED", "4"))
WITH_REPLICA, WITHOUT = 16, 4
"""Twenty in all; those without a replica take the longest."""
SMALLEST_GAP = 1e-3


def seeded_cells(seed: int) -> list[Cell]:
    """Choose cells, those without a replica last and side by side where they share a place."""
    rng = random.Random(seed)
    with_replica = [cell for cell in all_cells() if cell.has_replica]
    without = [cell for cell in all_cells() if not cell.has_replica]
    place = rng.choice([cell.place for cell in without])
    few = [cell for cell in without if cell.place == place]
    return [*rng.sample(with_replica, WITH_REPLICA), *rng.sample(few, WITHOUT)]


@pytest.fixture(scope="module")
def runner(fault_free_mesh: FaultMesh) -> CellRunner:
    runner = CellRunner(fault_free_mesh, random.Random(SEED))
    runner.expect(every_ask())
    return runner


def test_the_undisturbed_answers_are_those_of_the_whole_model(
    fault_free_mesh: FaultMesh, runner: CellRunner
) -> None:
    for ask, outcome in runner.expected.items():
        assert isinstance(outcome, Answered), outcome
        assert outcome.usage[1] == ask.tokens
        if ask.seed is None:
            prompt = tuple(prompt_of(ask.prompt_tokens))
            ids, gap = whole_model_answer(fault_free_mesh.model, prompt, ask.tokens)
            assert gap > SMALLEST_GAP, "a near-tie may be settled either way"
            assert ids_of(outcome.text) == ids


@pytest.mark.parametrize("cell", seeded_cells(SEED), ids=str)
def test_a_fault_changes_nothing_or_is_told_cleanly(runner: CellRunner, cell: Cell) -> None:
    rng = random.Random(f"{SEED} {cell}")
    result = runner.run(cell, ask_for(cell, rng, streamed=rng.random() < 0.7))
    assert result.verdict is not Verdict.WRONG, result
