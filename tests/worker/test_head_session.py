import asyncio

import msgspec
import pytest

from meshnet_common.protocol.bodies import Epoch
from meshnet_common.protocol.messages import HopFault
from meshnet_worker.head_session import (
    BlamedError,
    HeadSession,
    HopFailedError,
    Mending,
    NoRoomError,
    Phase,
    RouteLostError,
    RouteSilentError,
)
from tests.common.builders import hop
from tests.worker.builders import GREEDY
from tests.worker.head_routes import FULL, ROUTE, fault, generation


def session(phase: Phase = Phase.RUNNING, opening: Epoch | None = (2, 0)) -> HeadSession:
    return HeadSession(ROUTE, generation(), GREEDY, asyncio.Queue(2), 0.0, phase, opening)


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


def test_who_has_failed_since_the_last_token_is_named_once() -> None:
    one = session()
    for code, worker_id in (("peer_lost", "w1"), ("silent", ""), ("peer_stalled", "w1")):
        one.is_hurt(msgspec.structs.replace(fault(code), worker_id=worker_id), 5.0)
    assert one.hop_faults == (HopFault(worker_id="w1", code="peer_stalled"),)
    assert (one.phase, one.mending and one.mending.since) == (Phase.MENDING, 5.0)


def test_the_first_try_to_mend_is_made_at_once_and_the_others_ever_later() -> None:
    mending = Mending(0.0)
    delays = []
    for tries in range(7):
        mending.tries = tries
        delays.append(mending.back_off_seconds)
    assert delays == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 1.6]


@pytest.mark.parametrize(
    ("felled", "is_blamed"),
    [
        ([("w1", (2, 0)), ("w2", (2, 1))], True),
        ([("w1", (2, 0)), ("w2", (2, 0))], False),
        ([("w1", (2, 0)), ("w1", (2, 1))], False),
        ([("w1", (2, 0)), ("w2", (2, 0)), ("w3", (3, 0))], True),
    ],
    ids=["one after the other", "both at once", "one only", "a third"],
)
def test_engines_that_fail_one_after_the_other_blame_the_request(
    felled: list[tuple[str, Epoch]], is_blamed: bool
) -> None:
    one = session()
    for worker_id, one.opening in felled:
        one.is_hurt(msgspec.structs.replace(fault("engine_lost"), worker_id=worker_id), 5.0)
    assert one.mending is not None
    assert one.mending.is_poison == is_blamed
    assert isinstance(one.mending.error, BlamedError) == is_blamed


def test_progress_between_two_engines_blames_nobody() -> None:
    one = session()
    one.is_hurt(msgspec.structs.replace(fault("engine_lost"), worker_id="w1"), 5.0)
    one.has_reached(9, 6.0)
    one.opening = (2, 1)
    one.is_hurt(msgspec.structs.replace(fault("engine_lost"), worker_id="w2"), 7.0)
    assert one.mending is not None
    assert not one.mending.is_poison


def test_a_session_is_felled_by_its_own_workers_engine_only() -> None:
    for worker_id, code, is_felled in (
        ("w0", "engine_lost", True),
        ("w0", "peer_lost", False),
        ("w1", "engine_lost", False),
    ):
        one = session()
        one.is_hurt(msgspec.structs.replace(fault(code), worker_id=worker_id), 5.0)
        assert one.is_felled == is_felled
    assert not session().is_felled


def test_a_client_is_told_who_failed_or_why_there_is_no_other_route() -> None:
    mending = Mending(0.0, [fault("peer_lost")])
    assert isinstance(mending.error, HopFailedError)
    mending.faults = [msgspec.structs.replace(fault("silent"), worker_id="")]
    assert isinstance(mending.error, RouteSilentError)
    mending.refusal = NoRoomError("of its layers 0-3, 2-3 have no ready worker")
    assert isinstance(mending.error, RouteLostError)
    assert "2-3 have no ready worker" in str(mending.error)


def test_what_is_left_of_earlier_routes_is_closed_in_their_epochs() -> None:
    one = session()
    one.left = {"w9": (hop("w9", 0, 2), (1, 0)), "w1": (hop("w1", 2, 4), (1, 0))}
    assert {to: body.epoch for to, (_, body) in one.closes().items()} == {
        "w9": (1, 0),
        "w0": (1, 0),
        "w1": (1, 0),
    }


def test_who_waited_too_long_says_for_what() -> None:
    one = session()
    one.faults = [fault(kv=FULL)]
    assert "It waited 60 seconds. Worker w1: full" in str(one.wait_error(60.0))


def test_who_never_had_its_turn_says_so() -> None:
    assert "Others were before it" in str(session().wait_error(60.0))
