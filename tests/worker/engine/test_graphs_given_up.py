"""Whatever goes wrong with graphs, the plain pass goes on."""

from dataclasses import replace

import pytest
import torch

from meshnet_worker.engine import graph_proof
from meshnet_worker.engine import graphs as module
from meshnet_worker.engine.cuda_capture import Run
from meshnet_worker.engine.shard import Shard
from meshnet_worker.engine_port import Noted
from tests.worker.conftest import ModelFolders
from tests.worker.engine.replaying import ALL, MIDDLE, Decoding, steps_until_replayed, uncompiled
from tests.worker.engine.splitting import CPU, source
from tests.worker.models import HIDDEN_SIZE, greedy_answer


@pytest.fixture(autouse=True)
def _almost_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WARM_PASSES", 2)


@pytest.fixture
def shard(model_folders: ModelFolders) -> Shard:
    return uncompiled(model_folders, "llama")


def test_only_a_proved_device_is_used_and_only_where_compiling_is_allowed(
    model_folders: ModelFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = source(model_folders("llama"))
    assert Shard(allowed)._graphs is None
    monkeypatch.setattr(graph_proof._Devices, "proved", {CPU})
    assert Shard(allowed)._graphs is not None
    assert Shard(replace(allowed, compiles=False))._graphs is None


def test_a_device_that_cannot_capture_after_all_costs_no_batch(
    model_folders: ModelFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_proof._Devices, "proved", {CPU})
    notes: list[Noted] = []
    shard = Shard(source(model_folders("llama")), notes.append)
    list(shard.load(ALL))
    graphs = shard._graphs
    decoding = Decoding(shard)
    shard._graphs = graphs
    answer = [int(decoding.open(5)[-1].argmax())]
    for _ in range(6):
        answer.append(int(decoding.step(torch.tensor(answer[-1:]), [0])[0].argmax()))
    assert answer == greedy_answer("llama", 5, 7)
    assert [note.is_warning for note in notes] == [True]


class Faulty:
    """Captures whose replays go wrong as they are told."""

    def __init__(self, decoding: Decoding) -> None:
        self.fault: Exception | None = None
        self.factor = 1.0
        decoding.graphs._capturing = replace(
            decoding.graphs._capturing, begin=lambda: self._capture
        )

    def _capture(self, run: Run) -> Run:
        def replay() -> torch.Tensor:
            if self.fault is not None:
                raise self.fault
            return run() * self.factor

        return replay


def test_a_capture_that_fails_costs_no_batch_and_is_told_once(shard: Shard) -> None:
    decoding = Decoding(shard)
    faulty = Faulty(decoding)
    faulty.fault = RuntimeError("out of memory")
    answer = [int(decoding.open(5)[-1].argmax())]
    for _ in range(12):
        answer.append(int(decoding.step(torch.tensor(answer[-1:]), [0])[0].argmax()))
        assert not shard.ran_compiled
    assert answer == greedy_answer("llama", 5, 13)
    assert [note.facts["reason"] for note in decoding.notes] == ["RuntimeError: out of memory"]
    assert decoding.notes[0].is_warning


def test_a_replay_that_computes_something_else_is_given_up(shard: Shard) -> None:
    decoding = Decoding(shard)
    faulty = Faulty(decoding)
    faulty.factor = 1.01
    decoding.open(5)
    assert steps_until_replayed(decoding) == 12
    assert len(decoding.notes) == 1
    assert decoding.graphs._graphs == {}


def test_a_proved_replay_that_fails_later_costs_no_batch(shard: Shard) -> None:
    decoding = Decoding(shard)
    faulty = Faulty(decoding)
    answer = [int(decoding.open(5)[-1].argmax())]
    for step in range(12):
        if step == 8:
            assert shard.ran_compiled
            faulty.fault = RuntimeError("launch failed")
        answer.append(int(decoding.step(torch.tensor(answer[-1:]), [0])[0].argmax()))
    assert answer == greedy_answer("llama", 5, 13)
    assert len(decoding.notes) == 1


def test_a_sessions_own_fault_is_not_the_graphs(shard: Shard) -> None:
    decoding = Decoding(shard, MIDDLE)
    decoding.open(5)
    for _ in range(6):
        decoding.step(torch.full((1, HIDDEN_SIZE), float("nan")), [0])
        assert not shard.ran_compiled
    assert decoding.notes == []
