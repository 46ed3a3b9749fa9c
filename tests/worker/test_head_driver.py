"""How one Session is driven; how its Route is mended is told in test_head_mending."""

import asyncio
from typing import Any

import msgspec
import pytest

from meshnet_common.protocol.bodies import Body
from meshnet_common.protocol.messages import RouteHop
from meshnet_common.protocol.sampling import History
from meshnet_worker.head import Heads
from meshnet_worker.head_driver import Bell, HeadRoom, opening
from meshnet_worker.head_session import HeadSession, RouteSilentError
from tests.worker.builders import GREEDY
from tests.worker.head_routes import EPOCH, ROUTE, Route, generation
from tests.worker.waiting import SECONDS, start_task


async def test_a_bell_wakes_all_who_wait() -> None:
    bell = Bell()
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(bell.wait(SECONDS * 10))
        await asyncio.sleep(0)
        bell.ring()


async def test_a_bell_that_nobody_rings_is_not_waited_for_for_ever() -> None:
    async with asyncio.timeout(SECONDS):
        await Bell().wait(0.01)


async def test_a_fault_of_ours_costs_its_session_only() -> None:
    route = Route()
    faults = [ZeroDivisionError()]

    def dispatch(target: RouteHop, body: Body) -> None:
        if faults:
            raise faults.pop()
        route.dispatch(target, body)

    room = HeadRoom(dispatch, route.renew, route.clock, 0.0, start_task)
    route.heads = Heads(room)
    with pytest.raises(RouteSilentError, match="Its Head Worker has failed"):
        await route.tokens()
    assert await route.tokens() == [3, 4, 5, 6]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"top_k": 3, "logprobs": 2, "logit_bias": ((1, 2.0),)}, None),
        ({"presence_penalty": 1.0}, History(answer_start=3, answer_ids=(40, 41))),
        (
            {"repetition_penalty": 1.5},
            History(answer_start=3, answer_ids=(40, 41), prompt_ids=(10, 11, 12)),
        ),
    ],
    ids=str,
)
def test_the_tail_learns_of_an_answer_what_its_draws_depend_on(
    fields: dict[str, Any], expected: History | None
) -> None:
    one = generation()
    one.chosen.extend((40, 41))
    session = HeadSession(
        route=ROUTE,
        generation=one,
        sampling=msgspec.structs.replace(GREEDY, **fields),
        news=asyncio.Queue(),
        heard_at=0.0,
        opening=EPOCH,
    )
    assert opening(session, 9, session.sampling).history == expected
    assert opening(session, 9).history is None
