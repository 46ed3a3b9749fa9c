from meshnet_common.ids import WorkerId
from meshnet_tracker.tries import HeadTries, ProxyPolicy

A, B = WorkerId("a"), WorkerId("b")
POLICY = ProxyPolicy(connect_retries=2, connect_backoff_seconds=0.5, hold_seconds=60.0)


def avoided(after: HeadTries, now: float) -> list[set[WorkerId]]:
    return [set(heads) for heads in after.avoid(now)]


def tries() -> HeadTries:
    return HeadTries(POLICY, progress_at=100.0)


def test_nobody_is_avoided_at_first() -> None:
    assert avoided(tries(), 100.0) == [set()]


def test_others_come_before_one_that_failed_and_then_it_is_asked_again() -> None:
    after = tries()
    after.failed(A, 100.0)
    assert avoided(after, 100.4) == [{A}]
    assert avoided(after, 100.5) == [{A}, set()]


def test_one_that_failed_rests() -> None:
    after = tries()
    after.failed(A, 100.0)
    after.failed(B, 100.25)
    assert after.rest_seconds(100.25) == 0.25
    assert after.rest_seconds(100.75) is None


def test_one_that_failed_too_often_is_hopeless() -> None:
    after = tries()
    for place in range(3):
        assert after.hopeless(100.0 + place) == frozenset()
        after.failed(A, 100.0 + place)
    assert after.hopeless(103.0) == {A}
    assert avoided(after, 103.0) == [{A}]
    assert after.rest_seconds(102.1) is None


def test_one_that_refused_is_hopeless_at_once() -> None:
    after = tries()
    after.failed(A, 100.0)
    after.refused(B, 100.0)
    assert after.hopeless(100.0) == {B}
    assert avoided(after, 100.1) == [{A, B}]
    assert avoided(after, 101.0) == [{A, B}, {B}]


def test_tries_are_counted_for_each_head_worker() -> None:
    after = tries()
    for head in (A, B, A, B):
        after.failed(head, 100.0)
    assert after.hopeless(100.0) == frozenset()


def test_what_failed_long_ago_counts_no_more() -> None:
    after = tries()
    for _ in range(3):
        after.failed(A, 100.0)
    after.refused(B, 100.0)
    assert after.hopeless(159.0) == {A, B}
    assert avoided(after, 160.0) == [set()]


def test_an_answer_that_grows_is_patient_again() -> None:
    after = tries()
    after.progress_at = 500.0
    assert after.gives_up_at == 560.0


def test_without_retries_the_first_fault_is_enough() -> None:
    after = HeadTries(ProxyPolicy(connect_retries=0), progress_at=0.0)
    after.failed(A, 0.0)
    assert after.hopeless(0.0) == {A}
