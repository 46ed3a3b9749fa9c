import pytest

from meshnet_gateway.serving.endpoint_state import COOL_SECONDS, EndpointState, Listing, Outcome
from tests.gateway.serving.test_admission import ONE, served


def state(places: int = 1) -> EndpointState:
    return next(iter(served(ONE, places=places)))


def test_a_place_is_counted_in_the_endpoint_and_in_its_group() -> None:
    one = state()
    attempt = one.begin(1, 0.0)
    assert (one.in_flight, one.group.total, one.may_take(0.0)) == (1, 1, False)

    one.end(attempt, Outcome.SUCCEEDED, 0.0, others=0)
    assert (one.in_flight, one.group.total, one.may_take(0.0)) == (0, 0, True)


@pytest.mark.parametrize(
    ("outcome", "admits"),
    [(Outcome.SUCCEEDED, True), (Outcome.FAILED, False), (Outcome.UNSAID, True)],
)
def test_only_a_failure_speaks_against_it(outcome: Outcome, admits: bool) -> None:
    one = state()
    attempt = one.begin(1, 0.0)
    if outcome is Outcome.SUCCEEDED:
        one.answered(attempt, 0.0)
    one.end(attempt, outcome, 0.0, others=1)

    assert one.breaker.admits(0.0) == admits


@pytest.mark.parametrize(
    ("seen", "listing", "is_resident"),
    [
        ([], Listing.UNKNOWN, True),
        ([True], Listing.LISTED, True),
        ([False], Listing.UNKNOWN, True),  # It has a name of its own for the model.
        ([True, False], Listing.SWAPPED, False),
        ([True, False, True], Listing.LISTED, True),
        ([True, None], Listing.UNREACHABLE, False),
        ([True, None, False], Listing.SWAPPED, False),
    ],
)
def test_what_it_lists_tells_whether_it_still_serves_the_model(
    seen: list[bool | None], listing: Listing, is_resident: bool
) -> None:
    one = state()
    for listed in seen:
        one.lists(listed)

    assert (one.listing, one.is_resident(0.0)) == (listing, is_resident)
    assert one.may_take(0.0) == (listing is not Listing.SWAPPED)


def test_an_unreachable_one_cools_until_it_answers() -> None:
    one = state()
    one.unreachable(10.0)
    assert one.comes_last(10.0)
    assert not one.comes_last(10.0 + COOL_SECONDS)

    one.answered(one.begin(1, 10.0), 10.0)
    assert not one.comes_last(10.0)


def test_one_that_was_not_found_at_the_last_look_comes_last() -> None:
    one = state()
    one.lists(None)
    assert one.comes_last(0.0)

    one.lists(True)
    assert not one.comes_last(0.0)
