import errno
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine import compiled as module
from meshnet_worker.engine.attention import FlatSegment
from meshnet_worker.engine.compiled import DecodeCompiler, Passes, Step
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
    monkeypatch.setattr(module, "WARM_PASSES", 2)
    monkeypatch.setattr(module, "LEAST_GAIN", 0.0)
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
            assert not any(isinstance(state, module._GivenUp) for state in states)
            self.position %= POSITIONS - 20
            self.step()
            time.sleep(0.01)


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
    wide = Decoding(shard, MIDDLE, module.WIDTHS[-1] + 1)
    for _ in range(5):
        wide.step()
    kv = SessionKv.alone(POSITIONS, MIDDLE.layers)
    for _ in range(5):
        shard.run(MIDDLE, torch.randn(3, HIDDEN_SIZE), [FlatSegment(kv, 0, 3, 0)], ())
    assert shard._compiler is not None
    assert shard._compiler._states == {}


RIGHT = torch.ones(1, 2)


class Scripted:
    """A compiler whose child writes no package, and whose compiled pass is ours."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, compiled: Callable[..., Any]) -> None:
        monkeypatch.setattr(module, "WARM_PASSES", 1)
        monkeypatch.setattr(module, "_compile", lambda *_given: None)
        monkeypatch.setattr(module, "_CompiledPass", compiled)
        passes = Passes(lambda _range: lambda *_: torch.ones(1), dict, torch.float32)
        self.compiler = DecodeCompiler(passes)

    def steps(
        self, count: int, right: torch.Tensor = RIGHT, sessions: int = 1
    ) -> list[tuple[torch.Tensor, bool]]:
        segments = [FlatSegment(SessionKv.alone(4, ()), row, 1, 0) for row in range(sessions)]
        step = Step(MIDDLE, torch.ones(sessions, 2), segments, is_sampled=False)

        def plain() -> torch.Tensor:
            # Slower than any of ours.
            time.sleep(0.005)
            return right

        results = []
        for _ in range(count):
            results.append(self.compiler.run(step, plain))
            time.sleep(0.01)
        return results


STEPS = 3 + 2 * module.TRIALS


def test_a_faster_pass_that_computes_the_same_is_adopted(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = Scripted(monkeypatch, lambda *_given: lambda _step: torch.ones(1, 2))
    assert scripted.steps(STEPS)[-1][1]


@pytest.mark.parametrize("wrong", [torch.full((1, 2), 1.1), torch.full((1, 2), float("nan"))])
def test_a_pass_that_computes_something_else_is_given_up(
    wrong: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted = Scripted(monkeypatch, lambda *_given: lambda _step: wrong)
    for output, was_compiled in scripted.steps(STEPS):
        assert torch.equal(output, torch.ones(1, 2))
        assert not was_compiled


def test_a_pass_that_gains_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(_step: Step) -> torch.Tensor:
        time.sleep(0.01)
        return torch.ones(1, 2)

    scripted = Scripted(monkeypatch, lambda *_given: slow)
    assert not any(was_compiled for _, was_compiled in scripted.steps(STEPS))


def test_a_pass_that_fails_costs_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_step: Step) -> torch.Tensor:
        raise RuntimeError("no such instruction")

    scripted = Scripted(monkeypatch, lambda *_given: failing)
    assert all(torch.equal(output, torch.ones(1, 2)) for output, _ in scripted.steps(STEPS))


def test_a_compiler_that_leaves_no_package_costs_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_given: object) -> None:
        raise FileNotFoundError

    scripted = Scripted(monkeypatch, missing)
    assert not any(was_compiled for _, was_compiled in scripted.steps(STEPS))


def test_a_dropped_shard_forgets_its_compiled_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = Scripted(monkeypatch, lambda *_given: lambda _step: torch.ones(1, 2))
    scripted.steps(STEPS)
    scripted.compiler.forget()
    assert not scripted.steps(1)[0][1]


def test_a_sessions_own_fault_is_not_the_compiled_passs(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = Scripted(monkeypatch, lambda *_given: lambda _step: torch.ones(1, 2))
    scripted.steps(STEPS, torch.full((1, 2), float("nan")))
    assert scripted.steps(STEPS)[-1][1]


def test_an_adopted_pass_that_fails_later_costs_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    faults: list[RuntimeError] = []

    def failing(_step: Step) -> torch.Tensor:
        if faults:
            raise faults[0]
        return torch.ones(1, 2)

    scripted = Scripted(monkeypatch, lambda *_given: failing)
    assert scripted.steps(STEPS)[-1][1]
    faults.append(RuntimeError("out of memory"))
    assert [was_compiled for _, was_compiled in scripted.steps(3)] == [False] * 3


def test_a_full_disk_or_too_many_processes_cost_no_batch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_given: object, **_named: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    def too_many(_work: object) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name, fault in (("mkdtemp", full), ("run_in_child", too_many)):
        with monkeypatch.context() as patch:
            scripted = Scripted(patch, lambda *_given: lambda _step: torch.ones(1, 2))
            patch.setattr(module, name, fault)
            assert not any(was_compiled for _, was_compiled in scripted.steps(STEPS))
    assert list(tmp_path.iterdir()) == []


def test_a_width_that_nobody_uses_any_more_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = Scripted(monkeypatch, lambda *_given: lambda step: torch.ones(len(step.rows), 2))
    scripted.steps(2, torch.ones(8, 2), sessions=8)
    assert scripted.steps(STEPS)[-1][1]
