import pytest

from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine.groups import ACTIVE_SECONDS, MOST_PATIENCE_SECONDS, Groups
from meshnet_worker.engine.scheduler import Lane, WaitingSegments

HEAD = Lane(0, ShardRange(0, 2))
LATER = Lane(0, ShardRange(2, 4))
PASS_SECONDS = 0.02


class Feeding:
    """Sessions that are fed, and what waits of them."""

    def __init__(self, sessions: int, lane: Lane = HEAD, groups: int = 2) -> None:
        self.groups, self.waiting, self.lane = Groups(), WaitingSegments(), lane
        self.groups.count = groups
        self.groups.passed(lane, PASS_SECONDS)
        self.feed(*range(sessions), now=0.0)
        for session in range(sessions):
            self.waiting.forget(session)

    def feed(self, *sessions: int, now: float, tokens: int = 1) -> None:
        for session in sessions:
            self.waiting.add(session, self.lane, tokens)
            self.groups.feed(session, self.lane, tokens, now)

    def wait_seconds(self, now: float) -> float:
        return self.groups.wait_seconds(self.waiting, now)


def test_a_lone_session_is_never_held_back() -> None:
    feeding = Feeding(1)
    feeding.feed(0, now=0.1)
    assert feeding.wait_seconds(0.1) == 0.0


def test_a_group_waits_for_its_members() -> None:
    feeding = Feeding(4)
    feeding.feed(0, now=0.1)
    assert feeding.wait_seconds(0.1) == pytest.approx(PASS_SECONDS)
    feeding.feed(1, now=0.11)
    assert feeding.wait_seconds(0.11) == 0.0


def test_nobody_waits_longer_than_a_pass_takes() -> None:
    feeding = Feeding(4)
    feeding.feed(0, now=0.1)
    assert feeding.wait_seconds(0.1 + PASS_SECONDS) == 0.0


def test_nobody_waits_long_however_slow_the_passes_are() -> None:
    feeding = Feeding(4)
    feeding.groups.passed(HEAD, 10.0)
    feeding.feed(0, now=0.1)
    assert feeding.wait_seconds(0.1) == pytest.approx(MOST_PATIENCE_SECONDS)


def test_a_session_that_has_gone_silent_or_away_is_not_waited_for() -> None:
    feeding = Feeding(4)
    feeding.feed(0, now=2 * ACTIVE_SECONDS)
    assert feeding.wait_seconds(2 * ACTIVE_SECONDS) == 0.0
    feeding = Feeding(4)
    for session in (1, 2, 3):
        feeding.groups.forget(session)
    feeding.feed(0, now=0.1)
    assert feeding.wait_seconds(0.1) == 0.0


def test_a_prompt_waits_for_nobody() -> None:
    feeding = Feeding(4)
    feeding.feed(0, now=0.1)
    feeding.feed(9, now=0.1, tokens=20)
    assert feeding.wait_seconds(0.1) == 0.0


def test_later_hops_hold_nothing_back() -> None:
    feeding = Feeding(4, lane=LATER)
    feeding.feed(0, now=0.1)
    assert feeding.wait_seconds(0.1) == 0.0


def test_segments_of_two_lanes_do_not_wait_for_each_other() -> None:
    feeding = Feeding(4)
    feeding.feed(0, now=0.1)
    feeding.waiting.add(9, LATER, 1)
    assert feeding.wait_seconds(0.1) == 0.0


def test_a_group_is_an_equal_share_of_those_who_decode() -> None:
    assert [Feeding(sessions).groups.width(HEAD, 0.1) for sessions in (1, 2, 3, 8)] == [1, 1, 2, 4]
    assert Feeding(8, groups=3).groups.width(HEAD, 0.1) == 3
