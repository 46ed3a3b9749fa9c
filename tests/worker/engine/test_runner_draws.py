"""What the runner draws at the end of the model, Session by Session."""

from typing import Any

import msgspec
import pytest
import torch

from meshnet_common.protocol.sampling import History
from meshnet_worker.engine.drawing import Mask
from meshnet_worker.engine.runner import BatchRunner
from meshnet_worker.engine.shard import Shard
from meshnet_worker.engine_port import (
    ArmSession,
    CloseSession,
    DropLayers,
    RunSegment,
    SizePool,
    StepResult,
    TruncateSession,
)
from tests.worker.conftest import ModelFolders
from tests.worker.engine.masks import PlainMask
from tests.worker.engine.splitting import CPU, loaded
from tests.worker.engine.test_runner import GREEDY, POOL_BLOCKS, Runner
from tests.worker.models import HIDDEN_SIZE, LAYERS, WORDS, greedy_answer, prompt_of

PROMPT = prompt_of(9)
OPENING, EPOCH = (3, 0), (3, 1)


@pytest.fixture(scope="module")
def llama(model_folders: ModelFolders) -> Shard:
    return loaded(model_folders("llama"))


@pytest.fixture
def runner(llama: Shard) -> Runner:
    return Runner(llama)


def arm(
    runner: Runner, session: int, answer: tuple[int, ...] = (), start: int = 9, **fields: Any
) -> None:
    history = History(answer_start=start, answer_ids=answer, prompt_ids=tuple(PROMPT))
    sampling = msgspec.structs.replace(GREEDY, **fields)
    runner.runner.change(ArmSession(session, OPENING, sampling, history))


def feed(runner: Runner, session: int, ids: list[int], start: int) -> StepResult:
    runner.add(session, ids, start, draws=True)
    ((result,), _) = runner.step()
    return result


def test_hidden_states_that_are_no_numbers_fail_their_session_alone(runner: Runner) -> None:
    good = torch.ones(2, HIDDEN_SIZE).numpy().tobytes()
    bad = torch.full((2, HIDDEN_SIZE), float("nan")).numpy().tobytes()
    for session, hidden in ((1, good), (2, bad), (3, good)):
        runner.open(session, 2, LAYERS)
        runner.add(session, None, hidden=hidden, draws=True)
    assert sorted(runner.tokens()) == [1, 3]
    assert "not a number" in runner.failures[2]


def test_an_answer_goes_on_as_its_parameters_say(runner: Runner) -> None:
    runner.open(1)
    arm(runner, 1, frequency_penalty=2.0, repetition_penalty=1.5, logprobs=2)
    results = [feed(runner, 1, PROMPT, 0)]
    while len(results) < 6:
        results.append(feed(runner, 1, [results[-1].token_id or 0], 8 + len(results)))
    chosen = tuple(result.token_id or 0 for result in results)
    assert results[0].logprobs is not None
    assert len(results[0].logprobs.top) == 2
    for taken in range(6):
        # A successor has no KV yet, and knows the answer by its opening.
        other = 10 + taken
        runner.open(other, positions=20)
        arm(
            runner, other, chosen[:taken], frequency_penalty=2.0, repetition_penalty=1.5, logprobs=2
        )
        result = feed(runner, other, [*PROMPT, *chosen[:taken]], 0)
        assert result.token_id == chosen[taken]
        told, expected = result.logprobs, results[taken].logprobs
        assert told is not None
        assert expected is not None
        assert told.logprob == pytest.approx(expected.logprob, abs=1e-4)
        assert [i for i, _ in told.top] == [i for i, _ in expected.top]


def test_a_rolled_back_position_draws_the_same_again(runner: Runner) -> None:
    runner.open(1)
    arm(runner, 1, presence_penalty=1.5, temperature=0.8)
    first = feed(runner, 1, PROMPT, 0).token_id
    second = feed(runner, 1, [first or 0], 9).token_id
    assert feed(runner, 1, PROMPT[5:], 5).token_id == first
    assert feed(runner, 1, [first or 0], 9).token_id == second


def test_each_session_of_a_batch_draws_by_its_own_parameters(runner: Runner) -> None:
    plain = greedy_answer("llama", 9, 1)[0]
    for session in (1, 2, 3, 4):
        runner.open(session)
    arm(runner, 2, logit_bias=((plain, -100.0),))
    arm(runner, 3, end_ids=(plain,), min_tokens=1)
    for session in (1, 2, 3, 4):
        runner.add(session, PROMPT, draws=True)
    tokens = runner.tokens()
    assert (tokens[1], tokens[4]) == (plain, plain)
    assert tokens[2] == tokens[3] != plain


@pytest.mark.parametrize(
    "fields",
    [
        {"logit_bias": ((WORDS, 1.0),)},
        {"logit_bias": ((0, float("nan")),)},
        {"repetition_penalty": 0.0},
        {"temperature": float("inf")},
        {"grammar": "nobody follows it"},
    ],
    ids=str,
)
def test_parameters_that_nobody_can_draw_with_fail_their_session_alone(
    fields: dict[str, Any], runner: Runner
) -> None:
    for session in (1, 2, 3):
        runner.open(session)
    arm(runner, 2, **fields)
    assert list(runner.failures) == [2]
    for session in (1, 2, 3):
        runner.add(session, PROMPT, draws=True)
    plain = greedy_answer("llama", 9, 1)[0]
    assert runner.tokens() == {1: plain, 3: plain}


def test_an_answer_with_a_gap_fails_its_session_alone(runner: Runner) -> None:
    runner.open(1)
    runner.open(2)
    arm(runner, 2, start=5, presence_penalty=1.0)
    for session in (1, 2):
        runner.add(session, PROMPT, draws=True)
    assert runner.tokens() == {1: greedy_answer("llama", 9, 1)[0]}
    assert "not known" in runner.failures[2]


def test_a_segment_from_before_the_opening_draws_nothing_and_fails_nobody(runner: Runner) -> None:
    runner.open(1)
    arm(runner, 1, (4, 5), presence_penalty=1.0)
    runner.runner.add(RunSegment(1, (2, 9), 0, 3, token_ids=(1, 2, 3), draws=True), b"")
    assert runner.tokens() == {1: None}
    assert runner.failures == {}


def test_a_session_that_nobody_said_how_to_draw_fails_alone(runner: Runner) -> None:
    runner.open(1)
    runner.runner._sessions[1].drawing = None
    runner.add(1, PROMPT, draws=True)
    assert runner.tokens() == {}
    assert list(runner.failures) == [1]


def test_parameters_of_a_session_that_has_failed_are_passed_over(runner: Runner) -> None:
    arm(runner, 77)
    assert runner.events == []


def test_a_mask_is_made_once_for_each_session(llama: Shard) -> None:
    made: list[str] = []
    plain = greedy_answer("llama", 9, 1)[0]

    def make_mask(shard: Shard, command: ArmSession) -> Mask:
        assert shard is llama
        made.append(command.sampling.grammar)

        def mask(logits: torch.Tensor, _answer: object) -> None:
            logits[plain] = -float("inf")

        return PlainMask(mask)

    one = Runner(llama)
    one.runner = BatchRunner(
        {0: llama}, CPU, lambda *event: one.events.append(event), make_mask=make_mask
    )
    one.runner.size_pool(SizePool(0, POOL_BLOCKS))
    for session in (1, 2):
        one.open(session)
    arm(one, 2, grammar="not the likeliest")
    for session in (1, 2):
        one.add(session, PROMPT, draws=True)
    tokens = one.tokens()
    assert made == ["not the likeliest"]
    assert tokens[1] == plain != tokens[2]


def masked(llama: Shard, mask: Mask) -> Runner:
    """A runner of which session 1 has a mask, and session 2 none."""
    one = Runner(llama)
    one.runner = BatchRunner(
        {0: llama}, CPU, lambda *event: one.events.append(event), lambda *_: mask
    )
    one.runner.size_pool(SizePool(0, POOL_BLOCKS))
    for session in (1, 2):
        one.open(session)
    arm(one, 1, grammar="anything")
    return one


def test_only_the_segment_that_wants_a_token_waits_for_its_mask(llama: Shard) -> None:
    mask = PlainMask(lambda _logits, _answer: None, is_ready=False)
    one = masked(llama, mask)
    one.add(1, PROMPT[:4])
    one.add(1, PROMPT[4:], start=4, draws=True)
    one.add(2, PROMPT, draws=True)
    assert one.tokens() == {1: None, 2: greedy_answer("llama", 9, 1)[0]}
    one.runner.admit_ready()
    assert not one.runner.has_work
    mask.is_ready = True
    one.runner.admit_ready()
    assert one.tokens() == {1: greedy_answer("llama", 9, 1)[0]}


def test_a_segment_that_waits_for_its_mask_is_forgotten_with_its_session(llama: Shard) -> None:
    for change in (CloseSession(1), TruncateSession(1, 4), DropLayers(0, 0, LAYERS)):
        mask = PlainMask(lambda _logits, _answer: None, is_ready=False)
        one = masked(llama, mask)
        one.add(1, PROMPT, draws=True)
        if isinstance(change, DropLayers):
            one.runner.drop(change)
        else:
            one.runner.change(change)
        mask.is_ready = True
        one.runner.admit_ready()
        assert not one.runner.has_work
