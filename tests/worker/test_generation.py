from collections import deque
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.protocol.bodies import (
    SEGMENT_PREFILL,
    SEGMENT_SAMPLE,
    ChosenToken,
    Epoch,
    ProgressBody,
    ReplayBody,
    Segment,
)
from meshnet_worker.generation import RESERVE_AHEAD, RESERVE_POSITIONS, Generation

EPOCH = (2, 0)
END_ID = 0


def generation(
    prompt_tokens: int = 5,
    max_new_tokens: int = 10,
    chunk_tokens: int = 128,
    credit: int = 8,
    min_new_tokens: int = 0,
    block_positions: int = 1,
) -> Generation:
    return Generation(
        session_id="s1",
        epoch=EPOCH,
        prompt_ids=tuple(range(100, 100 + prompt_tokens)),
        max_new_tokens=max_new_tokens,
        end_ids=frozenset({END_ID}),
        min_new_tokens=min_new_tokens,
        chunk_tokens=chunk_tokens,
        credits=credit,
        block_positions=block_positions,
    )


def due(one: Generation) -> list[Segment]:
    """What may go out down the whole Route."""
    return [run for run in one.due() if isinstance(run, Segment)]


def token(position: int, token_id: int = 50, epoch: Epoch = EPOCH) -> ChosenToken:
    return ChosenToken("s1", epoch, position, token_id)


def progress(position: int, epoch: Epoch = EPOCH) -> ProgressBody:
    return ProgressBody(session_id="s1", epoch=epoch, position=position)


def run_route(one: Generation, answers: deque[int]) -> list[Segment]:
    """Let a Route answer every segment in order until the generation is finished."""
    one.next_reservation()
    sent = due(one)
    unanswered = deque(sent)
    while unanswered:
        assert len(unanswered) <= 8
        run = unanswered.popleft()
        end = run.start + run.tokens
        new: list[Segment] = []
        if run.flags & SEGMENT_SAMPLE:
            assert one.on_token(token(end, answers.popleft()))
            one.next_reservation()
            new = [] if one.finished else [one.decode_segment()]
        else:
            one.on_progress(progress(end))
            new = due(one)
        assert all(other.start + other.tokens <= one.reserved for other in new)
        unanswered.extend(new)
        sent.extend(new)
    return sent


@given(st.integers(1, 700), st.integers(1, 90), st.integers(1, 200), st.integers(1, 8))
def test_every_position_is_sent_once_and_in_order(
    prompt_tokens: int, max_new_tokens: int, chunk_tokens: int, credit: int
) -> None:
    one = generation(prompt_tokens, max_new_tokens, chunk_tokens, credit)
    answers = deque(range(1, max_new_tokens + 1))
    sent = run_route(one, answers)
    assert one.chosen == list(range(1, max_new_tokens + 1))
    ids = [token_id for run in sent for token_id in run.token_ids or ()]
    assert ids == [*one.prompt_ids, *one.chosen[:-1]]
    assert all(run.start + run.tokens == after.start for run, after in pairwise(sent))
    assert sent[-1].start + sent[-1].tokens == one.limit


def test_the_prompt_goes_out_in_chunks_and_the_last_one_wants_a_token() -> None:
    segments = due(generation(prompt_tokens=150))
    assert [(run.start, run.tokens) for run in segments] == [(0, 64), (64, 64), (128, 22)]
    assert [run.flags for run in segments] == [
        SEGMENT_PREFILL,
        SEGMENT_PREFILL,
        SEGMENT_PREFILL | SEGMENT_SAMPLE,
    ]


def test_a_long_prompt_goes_out_in_chunks_of_the_full_size() -> None:
    segments = due(generation(prompt_tokens=1300, credit=20))
    assert {run.tokens for run in segments[:-1]} == {128}


def test_no_more_chunks_are_in_flight_than_there_are_credits() -> None:
    one = generation(prompt_tokens=10, chunk_tokens=2, credit=3)
    assert len(due(one)) == 3
    assert due(one) == []
    assert [run.start for run in one.on_progress(progress(2))] == [6]


def test_progress_of_another_epoch_gives_no_credit_back() -> None:
    one = generation(prompt_tokens=10, chunk_tokens=2, credit=1)
    due(one)
    assert list(one.on_progress(progress(2, epoch=(1, 0)))) == []


@pytest.mark.parametrize(
    "stale",
    [
        pytest.param(token(5, epoch=(1, 0)), id="another epoch"),
        pytest.param(token(4), id="an earlier position"),
        pytest.param(token(6), id="a later position"),
    ],
)
def test_a_token_that_is_not_the_next_one_is_passed_over(stale: ChosenToken) -> None:
    one = generation(prompt_tokens=5)
    assert not one.on_token(stale)
    assert one.chosen == []


def test_a_repeated_token_counts_once() -> None:
    one = generation(prompt_tokens=5)
    assert one.on_token(token(5))
    assert not one.on_token(token(5))


def test_a_decode_step_feeds_the_newest_token_back() -> None:
    one = generation(prompt_tokens=5)
    due(one)
    one.on_token(token(5, 77))
    assert one.decode_segment() == Segment("s1", EPOCH, 5, 1, SEGMENT_SAMPLE, (77,))


def test_an_end_token_ends_it_and_counts_as_the_models_own_end() -> None:
    one = generation()
    one.on_token(token(5, END_ID))
    assert one.finished
    assert one.ended_by_model
    assert not one.on_token(token(6))


def test_the_last_token_that_is_allowed_ends_it() -> None:
    one = generation(max_new_tokens=2)
    endings = []
    for position in (5, 6):
        one.on_token(token(position))
        endings.append((one.finished, one.ended_by_model))
    assert endings == [(False, False), (True, False)]


def test_an_end_token_within_the_minimum_ends_nothing() -> None:
    one = generation(min_new_tokens=1)
    endings = []
    for position in (5, 6):
        one.on_token(token(position, END_ID))
        endings.append(one.finished)
    assert endings == [False, True]


def test_the_first_reservation_holds_the_prompt_and_a_run_of_the_answer() -> None:
    one = generation(prompt_tokens=5, max_new_tokens=10_000)
    assert one.next_reservation() == 5 + RESERVE_POSITIONS
    assert one.next_reservation() is None


def test_no_more_is_reserved_than_can_be_used() -> None:
    one = generation(prompt_tokens=5, max_new_tokens=10)
    assert one.next_reservation() == one.limit == 14
    assert one.next_reservation() is None


def test_the_next_run_is_reserved_before_the_last_one_is_used_up() -> None:
    one = generation(prompt_tokens=1, max_new_tokens=10_000)
    one.next_reservation()
    for position in range(1, RESERVE_POSITIONS - RESERVE_AHEAD + 1):
        one.on_token(token(position))
        assert one.next_reservation() is None
    one.on_token(token(RESERVE_POSITIONS - RESERVE_AHEAD + 1))
    used = 1 + len(one.chosen)
    assert one.next_reservation() == used + RESERVE_POSITIONS


@given(st.integers(1, 300), st.integers(1, 500), st.integers(1, 200))
def test_a_reservation_holds_all_that_is_sent_and_ends_with_a_block(
    prompt_tokens: int, max_new_tokens: int, block_positions: int
) -> None:
    one = generation(prompt_tokens, max_new_tokens, block_positions=block_positions)
    for position in range(prompt_tokens, prompt_tokens + max_new_tokens):
        one.next_reservation()
        assert position <= one.reserved <= one.limit
        assert one.reserved == one.limit or one.reserved % block_positions == 0
        assert one.on_token(token(position, 50))
    assert one.finished


def test_a_generation_that_lost_its_kv_sends_prompt_and_answer_again() -> None:
    one = generation(prompt_tokens=3, chunk_tokens=4)
    due(one)
    for position in (3, 4, 5):
        one.on_token(token(position, position))
    one.restart((3, 0))
    assert due(one) == []
    assert one.next_reservation() == one.limit
    one.credits = 8
    first, last = due(one)
    assert (first.epoch, first.start, first.token_ids) == ((3, 0), 0, (100, 101, 102, 3))
    assert (last.start, last.token_ids) == (4, (4, 5))
    assert (first.flags, last.flags) == (SEGMENT_PREFILL, SEGMENT_PREFILL | SEGMENT_SAMPLE)
    assert not one.on_token(token(6))
    assert one.on_token(token(6, epoch=(3, 0)))
    assert one.decode_segment().start == 6


@pytest.mark.parametrize(("capacity", "tokens"), [(5, 1), (7, 3), (14, 10), (99, 10)])
def test_an_answer_ends_where_the_routes_memory_ends(capacity: int, tokens: int) -> None:
    one = generation(prompt_tokens=5, max_new_tokens=10)
    one.capacity = capacity
    for position in range(5, 5 + tokens):
        assert not one.finished
        assert one.on_token(token(position))
    assert one.finished
    assert not one.ended_by_model


def test_a_prompt_fits_unless_the_route_is_known_to_be_smaller() -> None:
    one = generation(prompt_tokens=5)
    fits = []
    for capacity in (None, 5, 4):
        one.capacity = capacity
        fits.append(one.fits)
    assert fits == [True, True, False]


def test_a_generation_that_is_opened_again_goes_on_from_what_every_hop_holds() -> None:
    one = generation(prompt_tokens=200)
    one.restart((9, 0))
    one.on_opened((199, 199), (199, 0), 8)
    assert one.epoch == (9, 1)
    assert [(run.start, run.tokens, run.flags) for run in due(one)] == [
        (199, 1, SEGMENT_PREFILL | SEGMENT_SAMPLE)
    ]


def test_nothing_goes_down_the_whole_route_before_its_fills_are_done() -> None:
    one = generation(prompt_tokens=200)
    one.restart((9, 0))
    one.on_opened((199, 0, 199), (199, 0, 0), 2)
    replays = list(one.due())
    assert [type(run) for run in replays] == [ReplayBody, ReplayBody]
    assert [(r.start, r.tokens) for r in replays if isinstance(r, ReplayBody)] == [
        (0, 64),
        (64, 64),
    ]
    more = [run for end in (64, 128, 192) for run in one.on_progress(progress(end, (9, 1)))]
    assert [(run.start, run.tokens) for run in more] == [(128, 64), (192, 7)]
    assert [(run.start, type(run)) for run in one.on_progress(progress(199, (9, 1)))] == [
        (199, Segment)
    ]


def test_a_sign_of_life_brings_no_credit_back() -> None:
    one = generation(prompt_tokens=200, credit=1)
    list(one.due())
    waits = ProgressBody(session_id="s1", epoch=EPOCH, position=0, waits=True)
    assert list(one.on_progress(waits)) == []
