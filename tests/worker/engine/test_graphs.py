"""Everything but the capture itself: a pass that is run again stands for one that is replayed."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine import graphs as module
from meshnet_worker.engine.attention import FlatSegment
from meshnet_worker.engine.cuda_capture import Capture, Run
from meshnet_worker.engine.graphs import Capturing, DecodeGraphs
from meshnet_worker.engine.kv import SessionKv
from meshnet_worker.engine.pool import BlockPool
from meshnet_worker.engine.shard import Shard
from meshnet_worker.engine_port import Noted
from tests.worker.conftest import ModelFolders
from tests.worker.engine.splitting import source
from tests.worker.models import HIDDEN_SIZE, LAYERS, WORDS, greedy_answer, prompt_of

ALL = ShardRange(0, LAYERS)
MIDDLE = ShardRange(1, 3)
BLOCK_POSITIONS = 16
PROMPTS = (3, 14, 40, 15, 1)


def again(run: Run) -> Run:
    # As in a rehearsal.
    run()
    return run


class Decoding:
    """Sessions on a Shard whose Decode Steps are replayed as soon as they may be."""

    def __init__(self, shard: Shard, shard_range: ShardRange = ALL) -> None:
        self.shard, self.shard_range = shard, shard_range
        self.pool = BlockPool(BLOCK_POSITIONS, 48, scratch_blocks=1)
        self.kvs: list[SessionKv] = []
        self.held: list[int] = []
        self.notes: list[Noted] = []
        self.captures = 0
        self.graphs = DecodeGraphs(
            Capturing(shard._fixed_pass, shard.dtype, self._begin), self.notes.append
        )
        shard._graphs = self.graphs

    def _begin(self) -> Capture:
        self.captures += 1
        return again

    @torch.inference_mode()
    def open(self, tokens: int) -> torch.Tensor:
        """Another Session with a prompt of so many tokens; the last one's logits."""
        kv = SessionKv(len(self.kvs), self.pool)
        kv.reserve(tokens, self.shard_range.layers)
        self.kvs.append(kv)
        self.held.append(tokens)
        rows = torch.tensor(prompt_of(tokens))
        if self.shard_range.start:
            rows = torch.randn((tokens, HIDDEN_SIZE), generator=torch.Generator().manual_seed(1))
        sampled = [tokens - 1] if self.shard_range.end == LAYERS else []
        # As a chunk of two segments, never as a Decode Step.
        segments = [FlatSegment(kv, 0, tokens, 0)]
        graphs, self.shard._graphs = self.shard._graphs, None
        output = self.shard.run(self.shard_range, rows, segments, sampled)
        self.shard._graphs = graphs
        return output

    @torch.inference_mode()
    def step(self, rows: torch.Tensor, sessions: Sequence[int]) -> torch.Tensor:
        segments = []
        for row, session in enumerate(sessions):
            self.kvs[session].reserve(self.held[session] + 1, self.shard_range.layers)
            segments.append(FlatSegment(self.kvs[session], row, 1, self.held[session]))
            self.held[session] += 1
        sampled = range(len(segments)) if self.shard_range.end == LAYERS else ()
        return self.shard.run(self.shard_range, rows, segments, sampled)


@pytest.fixture(autouse=True)
def _almost_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WARM_PASSES", 2)


@pytest.fixture
def shard(model_folders: ModelFolders) -> Shard:
    return uncompiled(model_folders, "llama")


def uncompiled(model_folders: ModelFolders, name: str) -> Shard:
    shard = Shard(replace(source(model_folders(name)), compiles=False))
    list(shard.load(ALL))
    return shard


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral", "gemma2"])
def test_sessions_that_come_grow_and_go_answer_as_the_whole_model(
    name: str, model_folders: ModelFolders
) -> None:
    decoding = Decoding(uncompiled(model_folders, name))
    answers: list[list[int]] = []
    replays = 0
    for tokens in PROMPTS:
        answers.append([int(decoding.open(tokens)[-1].argmax())])
        # Each one more makes the Batch wider; they grow into their next blocks meanwhile.
        for _ in range(8):
            here = range(len(answers))
            rows = torch.tensor([answers[session][-1] for session in here])
            logits = decoding.step(rows, here)
            replays += decoding.shard.ran_compiled
            for session in here:
                answers[session].append(int(logits[session].argmax()))
    for tokens, answer in zip(PROMPTS, answers, strict=True):
        assert answer == greedy_answer(name, tokens, len(answer))
    assert replays > 10
    assert decoding.notes == []


def test_a_replay_equals_the_plain_pass_in_the_middle_of_a_model(shard: Shard) -> None:
    decoding = Decoding(shard, MIDDLE)
    for tokens in PROMPTS:
        decoding.open(tokens)
    for step in range(8):
        rows = torch.randn((5, HIDDEN_SIZE), generator=torch.Generator().manual_seed(step))
        output = decoding.step(rows, range(5))
        segments = [
            FlatSegment(kv, row, 1, held - 1)
            for row, (kv, held) in enumerate(zip(decoding.kvs, decoding.held, strict=True))
        ]
        with torch.inference_mode():
            plain = shard._skeleton.run(MIDDLE, rows, segments, ())
        torch.testing.assert_close(output, plain, rtol=0, atol=1e-5)
    assert shard.ran_compiled


def test_what_is_returned_is_not_overwritten_by_the_next_replay(shard: Shard) -> None:
    decoding = Decoding(shard)
    decoding.open(5)
    outputs = [decoding.step(torch.tensor([token]), [0]) for token in range(1, 9)]
    kept = [output.clone() for output in outputs]
    decoding.step(torch.tensor([9]), [0])
    assert all(torch.equal(a, b) for a, b in zip(outputs, kept, strict=True))
    assert len({output.data_ptr() for output in outputs}) == len(outputs)


def steps_until_replayed(decoding: Decoding, most: int = 12) -> int:
    for step in range(most):
        decoding.step(torch.tensor([step % WORDS]), [0])
        if decoding.shard.ran_compiled:
            return step
    return most


def test_a_pool_that_moves_makes_every_graph_anew(shard: Shard) -> None:
    decoding = Decoding(shard)
    decoding.open(5)
    first = steps_until_replayed(decoding)
    with torch.inference_mode():
        decoding.pool.resize(40)
    decoding.step(torch.tensor([1]), [0])
    assert not shard.ran_compiled
    assert steps_until_replayed(decoding) == first - 1
    assert decoding.captures == 2


def test_dropped_layers_take_their_graphs_along(shard: Shard) -> None:
    decoding = Decoding(shard)
    decoding.open(5)
    steps_until_replayed(decoding)
    shard.drop(ShardRange(3, 4))
    assert decoding.graphs._graphs == {}


def test_sessions_whose_blocks_differ_by_layer_run_plainly(shard: Shard) -> None:
    decoding = Decoding(shard)
    other = SessionKv(77, decoding.pool)
    decoding.open(1)
    other.reserve(BLOCK_POSITIONS, (0,))
    decoding.open(1)
    for step in range(8):
        decoding.step(torch.tensor([step, step]), [0, 1])
        assert not shard.ran_compiled
    # The first alone lies alike.
    assert steps_until_replayed(decoding) < 12


def test_a_pool_without_a_scratch_block_is_never_replayed(shard: Shard) -> None:
    decoding = Decoding(shard)
    decoding.pool = BlockPool(BLOCK_POSITIONS, 48)
    decoding.open(5)
    assert steps_until_replayed(decoding) == 12


def test_a_batch_that_is_too_much_for_one_pass_runs_plainly(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshnet_worker.engine.fixed.MOST_GATHERED", BLOCK_POSITIONS)
    decoding = Decoding(shard)
    decoding.open(2 * BLOCK_POSITIONS)
    assert steps_until_replayed(decoding) == 12
    decoding.open(3)
    for _ in range(8):
        decoding.step(torch.tensor([1]), [1])
    assert shard.ran_compiled
    assert decoding.notes == []


def test_no_more_graphs_are_made_than_there_is_room_for(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_GRAPHS", 1)
    decoding = Decoding(shard)
    decoding.open(5)
    decoding.open(5)
    steps_until_replayed(decoding)
    for step in range(8):
        decoding.step(torch.tensor([step, step]), [0, 1])
        assert not shard.ran_compiled


def test_a_session_beyond_its_reservation_is_refused_as_ever(shard: Shard) -> None:
    decoding = Decoding(shard)
    decoding.open(BLOCK_POSITIONS)
    segment = FlatSegment(decoding.kvs[0], 0, 1, BLOCK_POSITIONS)
    with pytest.raises(ValueError, match="reserved"):
        shard.run(ALL, torch.tensor([1]), [segment], [0])


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
