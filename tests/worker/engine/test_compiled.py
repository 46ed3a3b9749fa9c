import errno
import os
import select
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
from meshnet_worker.engine.compiled import DecodeCompiler
from meshnet_worker.engine.kv import SessionKv
from meshnet_worker.engine.step_package import Passes, Step
from meshnet_worker.engine_port import Noted

MIDDLE = ShardRange(1, 3)


RIGHT = torch.ones(1, 2)
SECONDS = 20.0
PLAIN_SECONDS = 0.005
STEPS = 4 + 2 * module.TRIALS
"""More than it takes from the first step of a width to its verdict."""


class Scripted:
    """A compiler whose child writes no package, whose compiled pass is ours, and so is the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, compiled: Callable[..., Any]) -> None:
        monkeypatch.setattr(module, "WARM_PASSES", 1)
        monkeypatch.setattr(module, "make_package", lambda *_given: None)
        monkeypatch.setattr(module, "PackagedPass", compiled)
        passes = Passes(lambda _range: lambda *_: torch.ones(1), dict, torch.float32)
        self.noted: list[Noted] = []
        self._seconds = 0.0
        self.compiler = DecodeCompiler(passes, self.noted.append, self._now)

    def _now(self) -> float:
        # Whatever is timed takes a moment.
        self.spend(PLAIN_SECONDS / 10)
        return self._seconds

    def spend(self, seconds: float) -> None:
        """Let a pass take so long."""
        self._seconds += seconds

    def reasons(self) -> list[str]:
        """Why passes were given up."""
        return [str(noted.facts["reason"]) for noted in self.noted if "reason" in noted.facts]

    def steps(
        self, count: int, right: torch.Tensor = RIGHT, sessions: int = 1
    ) -> list[tuple[torch.Tensor, bool]]:
        segments = [FlatSegment(SessionKv.alone(4, ()), row, 1, 0) for row in range(sessions)]
        step = Step(MIDDLE, torch.ones(sessions, 2), segments, is_sampled=False)

        def plain() -> torch.Tensor:
            self.spend(PLAIN_SECONDS)
            return right

        results = []
        for _ in range(count):
            results.append(self.compiler.run(step, plain))
            self._wait_for_children()
        return results

    def _wait_for_children(self) -> None:
        """Wait until those that build have ended, which the compiler still has to find out."""
        deadline = time.monotonic() + SECONDS
        for state in self.compiler._states.values():
            while isinstance(state, module._Building) and _is_running(state.child.pid):
                assert time.monotonic() < deadline
                select.select([state.child.lifeline], (), (), SECONDS)


def _is_running(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def test_a_faster_pass_that_computes_the_same_is_adopted(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = Scripted(monkeypatch, lambda *_given: lambda _step: torch.ones(1, 2))
    assert scripted.steps(STEPS)[-1][1]
    (noted,) = scripted.noted
    assert noted.event == "decode steps compiled"
    assert (noted.facts["layers"], noted.facts["width"]) == ("[1, 3)", 1)
    assert float(noted.facts["gain"]) > module.LEAST_GAIN


@pytest.mark.parametrize("wrong", [torch.full((1, 2), 1.1), torch.full((1, 2), float("nan"))])
def test_a_pass_that_computes_something_else_is_given_up(
    wrong: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted = Scripted(monkeypatch, lambda *_given: lambda _step: wrong)
    for output, was_compiled in scripted.steps(STEPS):
        assert torch.equal(output, torch.ones(1, 2))
        assert not was_compiled
    (reason,) = scripted.reasons()
    assert reason.startswith("it computes something else: ")


def test_neither_pass_gains_by_coming_second(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def compiled(_step: Step) -> torch.Tensor:
        order.append("compiled")
        return torch.ones(1, 2)

    scripted = Scripted(monkeypatch, lambda *_given: compiled)
    while not any(isinstance(s, module._Trying) for s in scripted.compiler._states.values()):
        scripted.steps(1)
    for _ in range(module.TRIALS):
        # A step of the plain pass alone, then one that the compiled pass begins.
        before = len(order)
        scripted.steps(1)
        assert len(order) == before
        scripted.steps(1)
        assert len(order) == before + 1


def test_a_pass_that_gains_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(_step: Step) -> torch.Tensor:
        scripted.spend(2 * PLAIN_SECONDS)
        return torch.ones(1, 2)

    scripted = Scripted(monkeypatch, lambda *_given: slow)
    assert not any(was_compiled for _, was_compiled in scripted.steps(STEPS))
    assert scripted.reasons() == ["it gains too little"]


def test_what_disturbs_most_trials_does_not_cost_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    disturbed = iter([10 * PLAIN_SECONDS] * (module.TRIALS - 1))

    def compiled(_step: Step) -> torch.Tensor:
        scripted.spend(next(disturbed, 0.0))
        return torch.ones(1, 2)

    scripted = Scripted(monkeypatch, lambda *_given: compiled)
    assert scripted.steps(STEPS)[-1][1]


def test_a_pass_that_fails_costs_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_step: Step) -> torch.Tensor:
        raise RuntimeError("no such instruction")

    scripted = Scripted(monkeypatch, lambda *_given: failing)
    assert all(torch.equal(output, torch.ones(1, 2)) for output, _ in scripted.steps(STEPS))
    assert scripted.reasons() == ["it failed: RuntimeError('no such instruction')"]


def test_a_compiler_that_leaves_no_package_costs_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_given: object) -> None:
        raise FileNotFoundError

    def failing(*_given: object) -> None:
        raise RuntimeError("g++ is not there")

    scripted = Scripted(monkeypatch, missing)
    monkeypatch.setattr(module, "make_package", failing)
    assert not any(was_compiled for _, was_compiled in scripted.steps(STEPS))
    (reason,) = scripted.reasons()
    assert reason.startswith("it was not built: ")
    assert reason.endswith("RuntimeError: g++ is not there")


def test_a_build_is_taken_though_nobody_decodes_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_given: object) -> None:
        raise FileNotFoundError

    scripted = Scripted(monkeypatch, missing)
    scripted.steps(2)
    deadline = time.monotonic() + SECONDS
    while lifelines := scripted.compiler.lifelines():
        assert time.monotonic() < deadline
        select.select(lifelines, (), (), SECONDS)
        scripted.compiler.look_after_builds()
    assert len(scripted.reasons()) == 1


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
    assert scripted.reasons() == ["it failed after all: RuntimeError('out of memory')"]


def test_a_full_disk_or_too_many_processes_cost_no_batch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_given: object, **_named: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    def too_many(*_given: object) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name, fault in (("mkdtemp", full), ("run_in_child", too_many)):
        with monkeypatch.context() as patch:
            scripted = Scripted(patch, lambda *_given: lambda _step: torch.ones(1, 2))
            patch.setattr(module, name, fault)
            assert not any(was_compiled for _, was_compiled in scripted.steps(STEPS))
            assert len(scripted.reasons()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_width_that_nobody_uses_any_more_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = Scripted(monkeypatch, lambda *_given: lambda step: torch.ones(len(step.rows), 2))
    scripted.steps(2, torch.ones(8, 2), sessions=8)
    assert scripted.steps(STEPS)[-1][1]
