from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_worker.transport import turns as module
from meshnet_worker.transport.turns import Turns
from meshnet_worker.transport.underway import Part, Parts

FRAMES = st.lists(st.sets(st.sampled_from("abcd"), min_size=1, max_size=3), max_size=12)


def parts(session_ids: str) -> Parts:
    return tuple(Part(session_id, (1, 0)) for session_id in session_ids)


def order(*frames: str, turns: Turns | None = None) -> list[str]:
    """How these frames leave, each named by its Sessions."""
    turns, waiting, left = turns or Turns(), list(frames), []
    while waiting:
        left.append(waiting.pop(turns.next(map(parts, waiting))))
    return left


def test_sessions_leave_by_turns() -> None:
    assert order(*"aaaabbcc") == list("abcabcaa")


def test_one_session_leaves_in_its_order_and_so_do_frames_of_no_session() -> None:
    assert order("a", "a") == ["a", "a"]
    assert Turns().next([(), ()]) == 0


def test_who_comes_again_and_again_does_not_overtake_who_waits() -> None:
    turns = Turns()
    assert order("a", "b", turns=turns) == ["a", "b"]
    assert order("b", "a", turns=turns) == ["a", "b"]


@given(FRAMES)
def test_no_frame_overtakes_another_of_one_of_its_sessions(frames: list[set[str]]) -> None:
    waiting = list(enumerate(frames))
    turns, last = Turns(), defaultdict[str, int](lambda: -1)
    while waiting:
        place = turns.next(parts("".join(sorted(names))) for _, names in waiting)
        number, names = waiting.pop(place)
        for name in names:
            assert last[name] < number
            last[name] = number


@given(FRAMES, st.integers(1, 5))
def test_no_frame_waits_for_longer_than_there_are_others(
    frames: list[set[str]], extra: int
) -> None:
    turns = Turns()
    waiting = [parts("z"), *(parts("".join(sorted(names))) for names in frames)]
    for _ in range(len(frames) + 1):
        left = waiting.pop(turns.next(waiting))
        if left == parts("z"):
            return
        waiting.extend([left] * extra)
    raise AssertionError


def test_turns_of_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_REMEMBERED", 2)
    turns = Turns()
    order(*"abcdef", turns=turns)
    assert list(turns._last) == ["e", "f"]
