import pytest

from meshnet_common.protocol.bodies import KvFigures
from meshnet_worker.requeue import MENDABLE, goes_on
from meshnet_worker.waiting_room import WaitingRoom
from tests.common.builders import ticket
from tests.worker.head_routes import fault, generation


@pytest.mark.parametrize("code", ["kv_exhausted", "kv_preempted"])
def test_who_lacks_room_waits(code: str) -> None:
    waiting = WaitingRoom(60.0)
    assert goes_on(fault(code), ticket(), generation(), waiting, 0.0)
    assert len(waiting) == 1


@pytest.mark.parametrize("code", ["bad_ticket", "kv_capacity", *sorted(MENDABLE)])
def test_no_other_fault_makes_it_wait(code: str) -> None:
    waiting = WaitingRoom(60.0)
    assert not goes_on(fault(code), ticket(), generation(), waiting, 0.0)
    assert len(waiting) == 0


@pytest.mark.parametrize(
    ("capacity", "answered", "goes"),
    [
        pytest.param(3, 0, True, id="the prompt fits"),
        pytest.param(2, 0, False, id="the prompt does not"),
        pytest.param(2, 1, True, id="an answer has begun and only ends"),
    ],
)
def test_who_could_never_fit_is_cut_to_what_does(capacity: int, answered: int, goes: bool) -> None:
    waiting = WaitingRoom(60.0)
    one = generation(prompt_tokens=3)
    one.chosen = [5] * answered
    one.has_moved = True
    figures = KvFigures(needed=9, free=0, total=1, capacity=capacity)
    assert goes_on(fault("kv_capacity", kv=figures), ticket(), one, waiting, 0.0) == goes
    assert (one.capacity, len(waiting)) == (capacity, 0)


def test_a_prompt_that_does_not_fit_is_tried_elsewhere_once() -> None:
    one = generation(prompt_tokens=3)
    figures = KvFigures(needed=9, free=0, total=1, capacity=2)
    waiting = WaitingRoom(60.0)
    tries = [
        goes_on(fault("kv_capacity", kv=figures), ticket(), one, waiting, 0.0) for _ in range(2)
    ]
    assert (tries, len(waiting)) == ([True, False], 0)


def test_a_known_capacity_only_shrinks() -> None:
    one = generation()
    for capacity in (50, 70):
        figures = KvFigures(needed=9, free=0, total=1, capacity=capacity)
        goes_on(fault("kv_capacity", kv=figures), ticket(), one, WaitingRoom(60.0), 0.0)
    assert one.capacity == 50
