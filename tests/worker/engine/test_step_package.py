"""Real compilation, of a small model: some 30 seconds of one core."""

import select
import time
from pathlib import Path

import pytest
import torch

from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine import compiled, step_package
from meshnet_worker.engine.attention import FlatSegment
from meshnet_worker.engine.kv import SessionKv
from meshnet_worker.engine.shard import Shard
from tests.worker.conftest import ModelFolders
from tests.worker.engine.splitting import loaded
from tests.worker.models import HIDDEN_SIZE, LAYERS, WORDS

POSITIONS = 400
DEADLINE_SECONDS = 300.0
MIDDLE = ShardRange(1, 3)


@pytest.fixture
def shard(model_folders: ModelFolders, monkeypatch: pytest.MonkeyPatch) -> Shard:
    """A Llama whose Decode Steps are compiled almost at once, and always adopted when right."""
    monkeypatch.setattr(compiled, "WARM_PASSES", 2)
    monkeypatch.setattr(compiled, "LEAST_GAIN", 0.0)
    return loaded(model_folders("llama"))


class Decoding:
    """Sessions that decode together, one row each."""

    def __init__(self, shard: Shard, shard_range: ShardRange, sessions: int) -> None:
        self.shard, self.shard_range = shard, shard_range
        self.kv = [SessionKv.alone(POSITIONS, shard_range.layers) for _ in range(sessions)]
        self.position = 0

    def segments(self) -> list[FlatSegment]:
        return [FlatSegment(kv, row, 1, self.position) for row, kv in enumerate(self.kv)]

    def rows(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.position)
        if self.shard_range.start:
            return torch.randn((len(self.kv), HIDDEN_SIZE), generator=generator)
        return torch.randint(0, WORDS, (len(self.kv),), generator=generator)

    def step(self) -> torch.Tensor:
        ends = self.shard_range.end == LAYERS
        sampled = range(len(self.kv)) if ends else ()
        output = self.shard.run(self.shard_range, self.rows(), self.segments(), sampled)
        self.position += 1
        return output

    def step_until_compiled(self) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not self.shard.ran_compiled:
            assert time.monotonic() < deadline
            assert self.shard._compiler is not None
            states = self.shard._compiler._states.values()
            assert not any(isinstance(state, compiled._GivenUp) for state in states)
            self.position %= POSITIONS - 20
            self.step()
            if building := self.shard.lifelines():
                # Steps meanwhile would take the core that it is built on.
                select.select(building, (), (), DEADLINE_SECONDS)


@torch.inference_mode()
def test_a_compiled_step_computes_what_the_uncompiled_one_does(shard: Shard) -> None:
    """From token ids to logits, with a row that belongs to nobody."""
    decoding = Decoding(shard, ShardRange(0, LAYERS), 3)
    decoding.step_until_compiled()
    decoding.position = 10
    segments, rows = decoding.segments(), decoding.rows()
    output = decoding.step()
    assert shard.ran_compiled
    plain = shard._skeleton.run(ShardRange(0, LAYERS), rows, segments, range(3))
    torch.testing.assert_close(output, plain, atol=1e-4, rtol=1e-4)


def test_prompts_and_wide_batches_run_uncompiled(shard: Shard) -> None:
    wide = Decoding(shard, MIDDLE, step_package.WIDTHS[-1] + 1)
    for _ in range(5):
        wide.step()
    kv = SessionKv.alone(POSITIONS, MIDDLE.layers)
    for _ in range(5):
        shard.run(MIDDLE, torch.randn(3, HIDDEN_SIZE), [FlatSegment(kv, 0, 3, 0)], ())
    assert shard._compiler is not None
    assert shard._compiler._states == {}


def test_a_pass_that_reads_weights_without_a_name_makes_no_package(
    model_folders: ModelFolders, tmp_path: Path
) -> None:
    shard = loaded(model_folders("llama"))
    passes = shard._passes()
    hidden = Decoding(shard, MIDDLE, 1)
    step = step_package.Step(MIDDLE, hidden.rows(), hidden.segments(), is_sampled=False)
    secret = torch.zeros(step_package.MOST_CONSTANT_BYTES // 4 + 1)

    def reads_secret(
        rows: torch.Tensor, positions: torch.Tensor, sampled: torch.Tensor | None
    ) -> torch.Tensor:
        return passes.over(MIDDLE)(rows, positions, sampled) + secret.sum()

    with pytest.raises(ValueError, match="weights that have no name"):
        step_package.make_package(
            reads_secret, passes.weights(), step_package.padded(step), tmp_path / "pass.pt2"
        )
    assert list(tmp_path.iterdir()) == []


def test_a_narrow_batch_is_filled_up_with_rows_of_nobody() -> None:
    segments = [FlatSegment(SessionKv.alone(9, ()), row, 1, 5 + row) for row in range(3)]
    step = step_package.Step(MIDDLE, torch.ones(3, 2), segments, is_sampled=True)
    rows, positions, sampled = step_package.padded(step)
    assert (rows.tolist()[2:], positions.tolist()) == ([[1.0, 1.0], [0.0, 0.0]], [5, 6, 7, 0])
    assert sampled is not None
    assert sampled.tolist() == [0, 1, 2, 3]


def test_a_batch_wider_than_any_package_has_no_width() -> None:
    many = step_package.WIDTHS[-1] + 1
    segments = [FlatSegment(SessionKv.alone(9, ()), row, 1, 5) for row in range(many)]
    assert step_package.Step(MIDDLE, torch.ones(many, 2), segments, is_sampled=False).width is None
