from meshnet_common.ids import WorkerId
from meshnet_tracker.tries import HeadTries, ProxyPolicy

A, B = WorkerId("a"), WorkerId("b")
POLICY = ProxyPolicy(connect_retries=2, connect_backoff_seconds=0.5, hold_seconds=60.0)


def avoided(after: HeadTries, now: float) -> list[set[WorkerId]]:
    return [set(heads) for heads in after.avoid(now)]


def tries() -> HeadTries:
    return HeadTries(POLICY)


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


def test_one_whose_quick_retries_are_spent_rests_longer_but_is_never_given_up() -> None:
    after = tries()
    for place in range(3):
        after.failed(A, 100.0 + place)
    assert after.hopeless(102.0) == frozenset()
    assert avoided(after, 102.6) == [{A}]
    assert after.rest_seconds(103.0) == 4.0
    assert avoided(after, 107.0) == [{A}, set()]


def test_one_whose_route_failed_comes_after_the_others_and_only_once_more() -> None:
    after = tries()
    after.route_failed(A, 100.0)
    assert avoided(after, 101.0) == [{A}, set()]
    after.route_failed(A, 130.0)
    assert after.hopeless(131.0) == {A}
    assert after.rest_seconds(130.1) is None


def test_missing_layers_explain_failed_routes() -> None:
    after = tries()
    for at in (100.0, 101.0):
        after.route_failed(A, at)
    after.layers_are_missing()
    assert avoided(after, 102.0) == [{A}, set()]


def test_one_that_refused_is_hopeless_at_once() -> None:
    after = tries()
    after.failed(A, 100.0)
    after.refused(B, 100.0)
    assert after.hopeless(100.0) == {B}
    assert avoided(after, 100.1) == [{A, B}]
    assert avoided(after, 101.0) == [{A, B}, {B}]


def test_quick_retries_are_counted_for_each_head_worker() -> None:
    after = tries()
    for head in (A, B, A, B):
        after.failed(head, 100.0)
    assert avoided(after, 100.5) == [{A, B}, set()]


def test_what_failed_long_ago_counts_no_more() -> None:
    after = tries()
    for _ in range(3):
        after.failed(A, 100.0)
    after.refused(B, 100.0)
    after.grew()
    assert avoided(after, 159.0) == [{A, B}, {B}]
    assert avoided(after, 160.0) == [set()]


def test_the_wait_is_measured_from_the_first_trouble() -> None:
    after = tries()
    assert after.seconds_left(500.0) == 60.0
    after.in_trouble(500.0)
    after.failed(A, 510.0)
    assert after.seconds_left(520.0) == 40.0
    assert after.seconds_left(560.0) == 0.0


def test_nobody_is_asked_twice_when_it_is_too_late_to_wait() -> None:
    after = tries()
    after.failed(A, 100.0)
    after.failed(B, 155.0)
    # A's fault of old counts no more, but its turn is over.
    assert avoided(after, 162.0) == [{A, B}]


def test_an_answer_that_grows_is_patient_again() -> None:
    after = tries()
    for at in (100.0, 101.0):
        after.route_failed(A, at)
    after.grew()
    assert after.seconds_left(170.0) == 60.0
    assert avoided(after, 110.0) == [{A}, set()]


def test_without_retries_the_first_fault_spends_them() -> None:
    after = HeadTries(ProxyPolicy(connect_retries=0))
    after.failed(A, 0.0)
    assert after.rest_seconds(0.0) == 5.0


def test_two_workers_that_fell_over_an_answer_blame_it_until_it_grows() -> None:
    after = tries()
    for head, is_blamed in ((A, False), (A, False), (B, True)):
        after.failed(head, 100.0)
        after.felled(head)
        assert after.is_blamed == is_blamed
    after.grew()
    assert not after.is_blamed
