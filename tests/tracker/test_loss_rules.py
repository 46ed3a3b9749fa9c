import pytest

from meshnet_tracker.loss_rules import is_cut_off, is_mass_loss, patience_seconds


@pytest.mark.parametrize(
    ("late", "live", "is_mass"),
    [(4, 4, False), (5, 5, True), (5, 24, True), (5, 25, False), (20, 100, False), (21, 100, True)],
)
def test_more_than_a_fifth_and_at_least_five_are_a_mass(
    late: int, live: int, is_mass: bool
) -> None:
    assert is_mass_loss(late, live) is is_mass


@pytest.mark.parametrize(
    ("asked", "silent", "cut_off"), [(0, 0, False), (1, 1, False), (2, 2, True), (3, 2, False)]
)
def test_a_tracker_is_cut_off_when_several_others_are_silent_as_well(
    asked: int, silent: int, cut_off: bool
) -> None:
    assert is_cut_off(asked, silent) is cut_off


def test_two_leases_go_by_before_anybody_is_lost() -> None:
    assert patience_seconds(12.0) == 24.0
