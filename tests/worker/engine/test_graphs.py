"""Everything but the capture itself, which needs a device."""

import pytest
import torch

from meshnet_common.protocol.sampling import Sampling
from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine import graphs as module
from meshnet_worker.engine.attention import FlatSegment
from meshnet_worker.engine.kv import SessionKv
from meshnet_worker.engine.pool import BlockPool
from meshnet_worker.engine.runner import BatchRunner
from meshnet_worker.engine.shard import Shard
from meshnet_worker.engine_port import (
    ArmSession,
    Event,
    OpenSession,
    RunSegment,
    SizePool,
    Stepped,
)
from tests.worker.conftest import ModelFolders
from tests.worker.engine.replaying import (
    ALL,
    BLOCK_POSITIONS,
    MIDDLE,
    Decoding,
    steps_until_replayed,
    uncompiled,
)
from tests.worker.engine.splitting import CPU
from tests.worker.models import HIDDEN_SIZE, LAYERS, greedy_answer

PROMPTS = (3, 14, 40, 15, 1)


@pytest.fixture(autouse=True)
def _almost_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WARM_PASSES", 2)


@pytest.fixture
def shard(model_folders: ModelFolders) -> Shard:
    return uncompiled(model_folders, "llama")


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


def drawn(shard: Shard) -> list[list[int]]:
    """What two Sessions draw at a high temperature, through the engine's own runner."""
    answers: list[list[int]] = [[1], [2]]

    def hear(event: Event, _payload: bytes) -> None:
        assert isinstance(event, Stepped)
        for result in event.results:
            answers[result.session].append(result.token_id or 0)

    runner = BatchRunner({0: shard}, CPU, hear)
    runner.size_pool(SizePool(0, 4))
    for session in range(2):
        runner.change(OpenSession(session, 0, 0, LAYERS, 40))
        sampling = Sampling(temperature=1.5, top_p=0.9, seed=session)
        runner.change(ArmSession(session, (0, 0), sampling))
    for step in range(30):
        for session in range(2):
            ids = (answers[session][-1],)
            runner.add(RunSegment(session, (0, 0), step, 1, token_ids=ids, draws=True), b"")
        while runner.has_work:
            runner.step()
    return answers


def test_what_is_drawn_does_not_depend_on_replays(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = drawn(shard)
    monkeypatch.setattr("meshnet_worker.engine.runner.scratch_blocks", lambda _device: 1)
    Decoding(shard)
    assert drawn(shard) == expected
    assert shard.ran_compiled
