import asyncio

import pytest

from meshnet_common.protocol.bodies import Epoch
from meshnet_worker.head_session import HeadSession, Phase
from tests.worker.builders import GREEDY
from tests.worker.head_routes import FULL, ROUTE, fault, generation


def session(phase: Phase = Phase.RUNNING, opening: Epoch | None = (2, 0)) -> HeadSession:
    return HeadSession(ROUTE, generation(), GREEDY, asyncio.Queue(2), phase, opening)


@pytest.mark.parametrize(
    ("phase", "epoch", "hits"),
    [
        (Phase.RUNNING, (2, 0), True),
        (Phase.OPENING, (2, 0), True),
        (Phase.RUNNING, (2, 3), True),
        (Phase.RUNNING, None, True),
        (Phase.RUNNING, (1, 9), False),
        (Phase.WAITING, (2, 0), False),
    ],
)
def test_only_faults_of_the_present_opening_count(
    phase: Phase, epoch: Epoch | None, hits: bool
) -> None:
    assert session(phase).is_hit_by(fault(epoch=epoch)) == hits


def test_one_sign_of_life_is_enough() -> None:
    one = session()
    for _ in range(5):
        one.tell()
    assert one.news.qsize() == 1


def test_who_waited_too_long_says_for_what() -> None:
    one = session()
    one.faults = [fault(kv=FULL)]
    assert "It waited 60 seconds. Worker w1: full" in str(one.wait_error(60.0))


def test_who_never_had_its_turn_says_so() -> None:
    assert "Others were before it" in str(session().wait_error(60.0))
