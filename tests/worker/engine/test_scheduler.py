from collections import defaultdict
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine.scheduler import Lane, Waiting, WaitingSegments

BUDGET = 8
LANES = [Lane(0, ShardRange(0, 2)), Lane(0, ShardRange(1, 2)), Lane(1, ShardRange(0, 2))]

# A session always runs in one lane; None takes a Batch.
EVENTS = st.lists(st.none() | st.tuples(st.integers(0, 5), st.integers(1, 12)), max_size=40)


def lane_of(session: int) -> Lane:
    return LANES[session % len(LANES)]


def drained(waiting: WaitingSegments) -> list[tuple[Waiting, ...]]:
    batches = []
    while batch := waiting.next_batch(BUDGET):
        batches.append(batch)
    return batches


def queued(*segments: tuple[int, int]) -> WaitingSegments:
    """Segments `(session, tokens)` of one lane, in order of arrival."""
    waiting = WaitingSegments()
    for session, tokens in segments:
        waiting.add(session, LANES[0], tokens)
    return waiting


def sessions_of(batch: tuple[Waiting, ...]) -> list[int]:
    return [segment.session for segment in batch]


@given(EVENTS)
def test_every_segment_runs_once_and_in_its_sessions_order(
    events: list[tuple[int, int] | None],
) -> None:
    waiting = WaitingSegments()
    added: dict[int, list[int]] = defaultdict(list)
    ran: dict[int, list[int]] = defaultdict(list)
    batches = []
    for event in events:
        if event is None:
            batches.append(waiting.next_batch(BUDGET))
        else:
            segment = waiting.add(event[0], lane_of(event[0]), event[1])
            added[event[0]].append(segment.arrival)
    for batch in (*batches, *drained(waiting)):
        for segment in batch:
            ran[segment.session].append(segment.arrival)
    assert ran == added
    assert not waiting
    assert len(waiting) == 0


@given(EVENTS)
def test_a_batch_keeps_to_one_lane_and_to_the_budget_with_decodes_first(
    events: list[tuple[int, int] | None],
) -> None:
    waiting = WaitingSegments()
    for event in filter(None, events):
        waiting.add(event[0], lane_of(event[0]), event[1])
    for batch in drained(waiting):
        assert len({segment.lane for segment in batch}) == 1
        assert len(set(sessions_of(batch))) == len(batch)
        assert sum(segment.tokens for segment in batch) <= BUDGET or len(batch) == 1
        kinds = [segment.tokens > 1 for segment in batch]
        assert kinds == sorted(kinds)


@given(EVENTS)
def test_the_oldest_segment_chooses_the_lane(events: list[tuple[int, int] | None]) -> None:
    waiting = WaitingSegments()
    left = {
        segment.arrival: segment
        for session, tokens in filter(None, events)
        for segment in (waiting.add(session, lane_of(session), tokens),)
    }
    for batch in drained(waiting):
        assert batch[0].lane == left[min(left)].lane
        for segment in batch:
            del left[segment.arrival]


def test_nothing_waits_at_first() -> None:
    assert WaitingSegments().next_batch() == ()
    assert not WaitingSegments()


def test_decodes_overtake_a_chunk_that_came_before() -> None:
    waiting = queued((1, 4), (2, 1), (3, 1))
    assert sessions_of(waiting.next_batch(BUDGET)) == [2, 3, 1]


def test_chunks_that_do_not_fit_wait_for_the_next_batch() -> None:
    waiting = queued((1, 5), (2, 5))
    assert [sessions_of(batch) for batch in drained(waiting)] == [[1], [2]]


def test_a_segment_larger_than_the_budget_runs_alone() -> None:
    waiting = queued((1, 20), (2, 5))
    assert [sessions_of(batch) for batch in drained(waiting)] == [[1], [2]]


def test_a_session_never_has_two_segments_in_one_batch() -> None:
    waiting = queued((1, 1), (1, 1), (2, 1))
    assert [sessions_of(batch) for batch in drained(waiting)] == [[1, 2], [1]]


def test_forgetting_a_session_takes_its_segments_and_no_others() -> None:
    waiting = queued((1, 2), (2, 2), (1, 2))
    assert [segment.arrival for segment in waiting.forget(1)] == [0, 2]
    assert waiting.forget(1) == ()
    assert [sessions_of(batch) for batch in drained(waiting)] == [[2]]


def run_until_session(waiting: WaitingSegments, session: int, decoding: int, lane: Lane) -> int:
    """Batches until a session's segment runs, while others always have a Decode Step waiting."""
    for batches in count(1):
        batch = waiting.next_batch(BUDGET)
        if session in sessions_of(batch) or batches > 50:
            return batches
        for other in range(decoding):
            if other in sessions_of(batch):
                waiting.add(other, lane, 1)
    raise AssertionError


def test_decodes_of_its_lane_cannot_starve_a_chunk() -> None:
    for tokens in range(2, 13):
        waiting = queued(*((other, 1) for other in range(6)), (99, tokens))
        assert run_until_session(waiting, 99, 6, LANES[0]) <= 3


def test_work_of_another_lane_cannot_starve_a_segment() -> None:
    waiting = queued(*((other, 1) for other in range(6)))
    waiting.add(99, LANES[2], 1)
    assert run_until_session(waiting, 99, 6, LANES[0]) <= 3


def test_decode_steps_are_kept_in_groups_of_what_their_lane_allows() -> None:
    waiting = queued(*((session, 1) for session in range(5)))
    batches = []
    while batch := waiting.next_batch(BUDGET, decodes=lambda _lane: 2):
        batches.append(sessions_of(batch))
    assert batches == [[0, 1], [2, 3], [4]]


def test_a_chunk_may_join_a_group() -> None:
    waiting = queued((0, 1), (1, 1), (2, 4))
    assert sessions_of(waiting.next_batch(BUDGET, decodes=lambda _lane: 1)) == [0, 2]


def test_a_batch_has_a_decode_step_however_few_are_allowed() -> None:
    assert sessions_of(queued((0, 1)).next_batch(BUDGET, decodes=lambda _lane: 0)) == [0]


def test_refills_get_a_quarter_of_a_batch_while_anything_else_waits() -> None:
    waiting = WaitingSegments()
    waiting.add(9, LANES[0], 1)
    for session in (1, 2, 3):
        waiting.add(session, LANES[0], 2, is_fill=True)
    waiting.add(4, LANES[0], 3)
    assert sessions_of(waiting.next_batch(BUDGET)) == [9, 1, 4]
    assert sessions_of(waiting.next_batch(BUDGET)) == [2, 3]


def test_a_refill_that_is_the_oldest_runs_though_it_is_large() -> None:
    waiting = WaitingSegments()
    waiting.add(1, LANES[0], 5, is_fill=True)
    waiting.add(2, LANES[0], 1, is_fill=True)
    waiting.add(3, LANES[0], 1)
    assert sessions_of(waiting.next_batch(BUDGET)) == [3, 1]
