from meshnet_gateway.answering.tries import Tries

ONE, TWO = "http://one", "http://two"


def tries(retries: int = 2) -> Tries:
    return Tries(retries, backoff_seconds=1.0)


def test_what_failed_rests_and_may_be_tried_again() -> None:
    one = tries()
    one.failed(ONE, now=10.0)
    assert one.barred(10.5) == {ONE}
    assert one.barred(11.0) == set()
    assert one.any_failed


def test_what_is_barred_is_barred_for_good() -> None:
    one = tries()
    one.bar(ONE)
    assert one.barred(1e9) == {ONE}
    assert (one.is_lost([ONE]), one.is_lost([ONE, TWO])) == (True, False)


def test_nobody_rests_while_there_is_somewhere_to_go() -> None:
    one = tries()
    one.failed(ONE, now=10.0)
    assert one.rest_seconds([ONE, TWO], 10.25) == 0.0
    assert one.rest_seconds([ONE], 10.25) == 0.75
    one.bar(TWO)
    assert one.rest_seconds([ONE, TWO], 10.25) == 0.75


def test_all_are_spent_once_each_was_retried_as_often_as_told() -> None:
    one = tries(retries=1)
    one.bar(TWO)
    one.failed(ONE, now=0.0)
    assert not one.is_spent([ONE, TWO])

    one.failed(ONE, now=1.0)
    assert one.is_spent([ONE, TWO])


def test_whoever_was_left_in_silence_is_no_reason_to_leave_another() -> None:
    tries = Tries(8, 0.5)
    tries.failed("once", 0.0)
    tries.leave("silent")
    tries.bar("never")

    assert tries.given_up == {"silent", "never"}
    assert tries.barred_for_good == {"never"}
