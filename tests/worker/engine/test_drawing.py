from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.protocol.sampling import History, Sampling
from meshnet_worker.engine.drawing import Drawing, Drawn, Mask, Wanted, draw_rows
from meshnet_worker.engine_port import ArmSession
from tests.worker.engine.masks import PlainMask

WORDS = 24
PROMPT = (3, 5, 5, 7)
START = len(PROMPT)
ANSWER_TOKENS = 6
PLAIN = Sampling(temperature=0.0, top_p=1.0, seed=1)
OPENING = (2, 0)
IDS = st.integers(0, WORDS - 1)
SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.8]),
    top_p=st.sampled_from([0.2, 0.9, 1.0]),
    seed=st.integers(0, 1 << 40),
    top_k=st.sampled_from([0, 1, 5, 99]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.3, 4.0]),
    frequency_penalty=st.sampled_from([0.0, -2.0, 0.7, 2.0]),
    presence_penalty=st.sampled_from([0.0, -2.0, 0.7, 2.0]),
    logit_bias=st.lists(st.tuples(IDS, st.sampled_from([-100.0, 3.0])), max_size=4).map(tuple),
    end_ids=st.lists(IDS, max_size=3).map(tuple),
    min_tokens=st.sampled_from([0, 1, 3, 99]),
    logprobs=st.sampled_from([None, 0, 3, 20]),
    grammar=st.sampled_from(["", "no repetitions"]),
)


def logits_at(position: int, scale: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(position)
    return torch.randn(WORDS, generator=generator).double() * scale


def no_repetitions(_command: ArmSession) -> Mask:
    """Masks that forbid what the answer began and ended with: they look at all of it."""

    def mask(logits: torch.Tensor, answer_ids: Sequence[int]) -> None:
        for token_id in (*answer_ids[:1], *answer_ids[-1:]):
            logits[token_id] = -float("inf")

    return PlainMask(mask)


def armed(sampling: Sampling, answer_ids: Sequence[int] = (), prompt: bool = True) -> Drawing:
    history = History(
        answer_start=START,
        answer_ids=tuple(answer_ids),
        prompt_ids=PROMPT if prompt else (),
    )
    return Drawing(ArmSession(1, OPENING, sampling, history), WORDS, no_repetitions)


def changed(**fields: Any) -> Sampling:
    return msgspec.structs.replace(PLAIN, **fields)


def draws(drawing: Drawing, start: int = START, count: int = ANSWER_TOKENS) -> list[Drawn]:
    return [drawing.draw(logits_at(p), p) for p in range(start, start + count)]


def ids_of(drawn: Sequence[Drawn]) -> list[int]:
    return [one.token_id for one in drawn]


@given(SAMPLINGS, st.integers(0, ANSWER_TOKENS))
def test_who_takes_over_draws_what_would_have_been_drawn(sampling: Sampling, taken: int) -> None:
    through = draws(armed(sampling))
    successor = armed(sampling, ids_of(through[:taken]))
    assert draws(successor, START + taken, ANSWER_TOKENS - taken) == through[taken:]


@given(SAMPLINGS, st.lists(st.integers(0, ANSWER_TOKENS), max_size=2))
def test_what_is_drawn_again_draws_the_same(sampling: Sampling, backs: list[int]) -> None:
    expected = draws(armed(sampling))
    one, drawn = armed(sampling), 0
    for back in [*backs, ANSWER_TOKENS]:
        start = min(back, drawn)
        again = draws(one, START + start)
        assert again == expected[start:] + again[ANSWER_TOKENS - start :]
        drawn = start + len(again)


def test_a_position_that_is_drawn_twice_counts_once() -> None:
    sampling = changed(frequency_penalty=2.0)
    flat = torch.tensor([3.0, 0.0], dtype=torch.float64)
    once, twice = armed(sampling), armed(sampling)
    for _ in range(3):
        assert twice.draw(flat, START).token_id == 0
    once.draw(flat, START)
    assert [d.draw(flat, START + 1).token_id for d in (once, twice)] == [0, 0]
    assert [d.draw(flat, START + 2).token_id for d in (once, twice)] == [1, 1]


def test_the_logits_of_a_row_are_left_as_they_are() -> None:
    logits = logits_at(1)
    armed(changed(frequency_penalty=2.0, logit_bias=((3, 9.0),)), (3, 4)).draw(logits, START + 2)
    assert torch.equal(logits, logits_at(1))


def test_penalties_of_the_answer_leave_the_prompt_alone() -> None:
    sampling = changed(frequency_penalty=2.0, presence_penalty=2.0)
    assert draws(armed(sampling)) == draws(armed(sampling, prompt=False))


def test_a_repetition_penalty_counts_prompt_and_answer() -> None:
    logits = torch.zeros(WORDS, dtype=torch.float64)
    logits[list(PROMPT)], logits[[1, 2]] = 4.0, 3.0
    drawing = armed(changed(repetition_penalty=2.0))
    drawn = [drawing.draw(logits, START + place).token_id for place in range(3)]
    assert drawn == [1, 2, PROMPT[0]]


def test_an_end_token_is_not_drawn_among_the_first_ones() -> None:
    logits = torch.tensor([5.0, 4.0, 3.0], dtype=torch.float64)
    drawing = armed(changed(end_ids=(0, 1, 99), min_tokens=2))
    drawn = [drawing.draw(logits, START + place).token_id for place in range(4)]
    assert drawn == [2, 2, 0, 0]


def test_an_end_token_may_be_all_that_a_grammar_leaves() -> None:
    logits = torch.tensor([-float("inf"), 1.0], dtype=torch.float64)
    assert armed(changed(end_ids=(1,), min_tokens=9)).draw(logits, START).token_id == 1


def test_a_mask_sees_the_answer_before_the_position_and_after_the_penalties() -> None:
    seen: list[tuple[list[int], float]] = []

    def make_mask(command: ArmSession) -> Mask:
        assert command.sampling.grammar == "anything"
        return PlainMask(lambda logits, answer: seen.append((list(answer), float(logits[4]))))

    history = History(answer_start=START, answer_ids=(4, 6))
    sampling = changed(grammar="anything", presence_penalty=1.0, logit_bias=((4, 0.5),))
    drawing = Drawing(ArmSession(1, OPENING, sampling, history), WORDS, make_mask)
    drawing.draw(torch.zeros(WORDS, dtype=torch.float64), START + 1)
    assert seen == [([4], 0.5 - 1.0)]


def test_logprobs_do_not_follow_the_parameters() -> None:
    plain = armed(changed(logprobs=3)).draw(logits_at(1), START)
    bent = armed(
        changed(logprobs=3, temperature=1.5, top_k=1, logit_bias=((plain.token_id, 50.0),))
    ).draw(logits_at(1), START)
    assert plain == bent


def test_only_what_was_asked_for_is_told() -> None:
    assert armed(PLAIN).draw(logits_at(1), START).logprobs is None
    told = armed(changed(logprobs=0)).draw(logits_at(1), START).logprobs
    assert told is not None
    assert told.top == ()


@pytest.mark.parametrize("position", [START - 1, START + 3])
def test_an_answer_that_nobody_told_of_is_a_fault(position: int) -> None:
    with pytest.raises(ValueError, match="not known"):
        armed(changed(frequency_penalty=1.0), (4, 6)).draw(logits_at(1), position)


def test_draws_that_look_at_one_position_need_no_history() -> None:
    sampling = changed(temperature=1.0, top_k=4, logprobs=2, logit_bias=((3, 1.0),))
    bare = Drawing(ArmSession(1, OPENING, sampling), WORDS)
    assert bare.draw(logits_at(1), 77) == armed(sampling).draw(logits_at(1), 77)


BAD = [
    {"temperature": float("nan")},
    {"temperature": -1.0},
    {"top_p": float("nan")},
    {"min_p": 1.5},
    {"min_p": float("nan")},
    {"top_k": -1},
    {"min_tokens": -1},
    {"logprobs": 21},
    {"logprobs": -1},
    {"repetition_penalty": 0.0},
    {"repetition_penalty": float("inf")},
    {"frequency_penalty": float("inf")},
    {"presence_penalty": float("nan")},
    {"logit_bias": ((WORDS, 1.0),)},
    {"logit_bias": ((-1, 1.0),)},
    {"logit_bias": ((1 << 63, 1.0),)},
    {"logit_bias": ((1, float("nan")),)},
]


@pytest.mark.parametrize("fields", BAD, ids=str)
def test_parameters_out_of_range_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"out of range|not in the vocabulary"):
        armed(changed(**fields))


@pytest.mark.parametrize("bad", [WORDS, -1, 1 << 63])
def test_ids_that_the_model_lacks_are_refused(bad: int) -> None:
    for history in (
        History(answer_start=START, answer_ids=(bad,)),
        History(answer_start=START, prompt_ids=(bad,)),
    ):
        with pytest.raises(ValueError, match="not in the vocabulary"):
            Drawing(ArmSession(1, OPENING, PLAIN, history), WORDS)


def test_a_session_is_ready_when_its_mask_is() -> None:
    mask = PlainMask(lambda _logits, _answer: None, is_ready=False)
    command = ArmSession(1, OPENING, changed(grammar="x"), History(answer_start=START))
    drawing = Drawing(command, WORDS, lambda _command: mask)
    readiness = [drawing.is_ready]
    mask.is_ready = True
    assert [*readiness, drawing.is_ready, armed(PLAIN).is_ready] == [False, True, True]


def test_a_grammar_that_nobody_follows_here_is_refused() -> None:
    command = ArmSession(1, OPENING, changed(grammar="x"), History(answer_start=START))
    with pytest.raises(ValueError, match="no grammar"):
        Drawing(command, WORDS)


def test_parameters_that_look_back_need_a_history() -> None:
    with pytest.raises(ValueError, match="where the answer begins"):
        Drawing(ArmSession(1, OPENING, changed(min_tokens=2)), WORDS)


def rows_of(*drawings: Drawing | None, epoch: tuple[int, int] = OPENING) -> list[Wanted]:
    return [Wanted(drawing, epoch, START + 1) for drawing in drawings]


def test_rows_are_drawn_as_each_alone() -> None:
    samplings = [
        PLAIN,
        changed(temperature=1.0, logprobs=2),
        changed(presence_penalty=2.0),
        PLAIN,
        changed(logprobs=4),
    ]
    logits = torch.stack([logits_at(place) for place in range(len(samplings))]).float()
    together = draw_rows(rows_of(*(armed(sampling, (4,)) for sampling in samplings)), logits)
    alone = [
        armed(sampling, (4,)).draw(row.double(), START + 1)
        for sampling, row in zip(samplings, logits, strict=True)
    ]
    assert together == alone


def test_greedy_rows_are_drawn_together() -> None:
    logits = torch.stack([logits_at(place) for place in range(3)]).float()
    drawn = draw_rows(rows_of(*[armed(PLAIN)] * 3), logits)
    assert drawn == [Drawn(int(row.argmax())) for row in logits]
    assert draw_rows([], logits) == []


def test_a_fault_costs_its_own_row_only() -> None:
    def failing(_command: ArmSession) -> Mask:
        def mask(logits: torch.Tensor, _answer_ids: Sequence[int]) -> None:
            logits[:] = -float("inf")
            raise KeyError("no such rule")

        return PlainMask(mask)

    command = ArmSession(1, OPENING, changed(grammar="x"), History(answer_start=START + 1))
    bad = [Drawing(command, WORDS, failing), None, armed(changed(min_tokens=1), ())]
    good = [armed(PLAIN), armed(changed(logit_bias=((3, 50.0),)))]
    logits = torch.stack([logits_at(0)] * 6).float()
    logits[5, 7] = float("nan")
    drawn = draw_rows(rows_of(bad[0], good[0], bad[1], good[1], bad[2], good[1]), logits)
    assert [isinstance(one, Exception) for one in drawn] == [True, False, True, False, True, True]
    assert drawn[1] == Drawn(int(logits[1].argmax()))
    assert drawn[3] == Drawn(3)


def test_a_segment_from_before_the_opening_draws_nothing() -> None:
    drawing = armed(changed(presence_penalty=1.0), (4, 6))
    stale, fresh = rows_of(drawing, epoch=(1, 9)), rows_of(drawing, epoch=(2, 1))
    logits = logits_at(1).float().unsqueeze(0)
    assert draw_rows(stale, logits) == [None]
    assert drawing.draw(logits_at(2), START + 2)
    assert draw_rows(fresh, logits) != [None]
