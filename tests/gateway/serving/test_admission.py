import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from meshnet_common.edge.clock import ManualClock, loop_time
from meshnet_common.openai.errors import ApiError
from meshnet_gateway.limits.adaptive import AdaptiveLimit
from meshnet_gateway.limits.breaker import BreakerPolicy, CircuitBreaker
from meshnet_gateway.limits.budgets import GroupBudget
from meshnet_gateway.serving.admission import FIRST, NEXT, Admission, NoPlaceError, Turn
from meshnet_gateway.serving.endpoint_state import EndpointState, Outcome
from meshnet_gateway.serving.served_model import ServedModel
from tests.gateway.running import endpoint, model, until

ONE, TWO = "http://one", "http://two"


def served(*urls: str, places: int = 1, name: str = "smol") -> ServedModel:
    """Serve a model through Endpoints with so many places each; one failure opens a breaker."""
    group = GroupBudget(None)
    group.register(name, 0, reserved=True)
    known = model(*(endpoint(url) for url in urls), id=name)
    one = ServedModel(known, name)
    one.set_endpoints(
        known.endpoints,
        lambda it: EndpointState(
            name,
            it,
            AdaptiveLimit(places, places),
            group,
            CircuitBreaker(BreakerPolicy(failures_in_a_row=1), lambda: 0.0),
        ),
    )
    one.retarget()
    return one


def turn(wanted: ServedModel, seconds: float = 60.0, priority: int = FIRST) -> Turn:
    return Turn(wanted, loop_time() + seconds, priority=priority)


def admission(most: int = 100) -> Admission:
    return Admission(ManualClock(100.0), most)


@asynccontextmanager
async def taken(one: Admission, wanted: ServedModel) -> AsyncIterator[None]:
    """Take a place for the time of the block."""
    async with one.lease(turn(wanted)) as lease:
        assert lease is not None
        yield


async def go(one: Admission, wish: Turn, begun: list[Turn]) -> None:
    async with one.lease(wish):
        begun.append(wish)


async def test_who_comes_first_goes_first_and_hears_how_many_are_ahead() -> None:
    one, wanted, begun = admission(), served(ONE), list[Turn]()
    wishes = [turn(wanted) for _ in range(3)]
    async with asyncio.TaskGroup() as group, taken(one, wanted):
        for wish in wishes:
            group.create_task(go(one, wish, begun))
        await until(lambda: one.lines.total == 3)
        assert [one.ahead(wish) for wish in wishes] == [1, 2, 3]

    assert begun == wishes
    assert (wanted.in_flight, one.lines.total, one.ahead(wishes[0])) == (0, 0, 0)


async def test_who_has_lost_a_place_goes_before_who_never_had_one() -> None:
    one, wanted, begun = admission(), served(ONE), list[Turn]()
    new, old = turn(wanted), turn(wanted, priority=NEXT)
    async with asyncio.TaskGroup() as group, taken(one, wanted):
        for number, wish in enumerate((new, old), 1):
            group.create_task(go(one, wish, begun))
            await until(lambda number=number: one.lines.total == number)  # type: ignore[misc]

    assert begun == [old, new]


async def test_who_leaves_the_line_holds_nobody_up() -> None:
    one, wanted, begun = admission(), served(ONE), list[Turn]()
    async with asyncio.TaskGroup() as group, taken(one, wanted):
        leaving = group.create_task(go(one, turn(wanted), begun))
        await until(lambda: one.lines.total == 1)
        staying = turn(wanted)
        group.create_task(go(one, staying, begun))
        await until(lambda: one.lines.total == 2)
        leaving.cancel()
        await until(lambda: one.lines.total == 1)
        assert one.ahead(staying) == 1

    assert begun == [staying]


async def test_a_place_granted_to_one_that_leaves_at_that_moment_is_free_again() -> None:
    one, wanted, begun = admission(), served(ONE), list[Turn]()
    async with asyncio.TaskGroup() as group:
        async with taken(one, wanted):
            leaving = group.create_task(go(one, turn(wanted), begun))
            await until(lambda: one.lines.total == 1)
        leaving.cancel()  # Its place was granted, but it has not run since.

    assert (begun, wanted.in_flight) == ([], 0)


async def test_nobody_waits_longer_than_it_may() -> None:
    one, wanted = admission(), served(ONE)
    async with taken(one, wanted):
        with pytest.raises(NoPlaceError):
            await go(one, turn(wanted, seconds=0.0), [])

    assert one.lines.total == 0


async def test_one_too_many_is_refused() -> None:
    one, wanted = admission(most=1), served(ONE)
    async with asyncio.TaskGroup() as group, taken(one, wanted):
        waiting = group.create_task(go(one, turn(wanted), []))
        await until(lambda: one.lines.total == 1)
        with pytest.raises(ApiError) as caught:
            await go(one, turn(wanted), [])
        waiting.cancel()

    assert (caught.value.status, caught.value.headers["Retry-After"]) == (503, "5")


async def test_who_has_had_a_place_is_never_one_too_many() -> None:
    one, wanted, begun = admission(most=0), served(ONE), list[Turn]()
    async with asyncio.TaskGroup() as group, taken(one, wanted):
        group.create_task(go(one, turn(wanted, priority=NEXT), begun))
        await until(lambda: one.lines.total == 1)
        assert begun == []


async def test_a_model_holds_up_nobody_but_itself() -> None:
    one, busy, idle = admission(), served(ONE), served(TWO, name="other")
    async with asyncio.TaskGroup() as group, taken(one, busy):
        waiting = group.create_task(go(one, turn(busy), []))
        await until(lambda: one.lines.total == 1)
        async with taken(one, idle):
            pass
        waiting.cancel()


async def test_a_barred_endpoint_is_not_given() -> None:
    one, wanted = admission(), served(ONE)
    wish = turn(wanted)
    wish.barred = frozenset({ONE})
    async with one.lease(wish) as lease:
        assert lease is None


async def test_all_who_wait_may_be_told_to_look_again() -> None:
    one, wanted, begun = admission(), served(ONE), list[Turn]()
    async with asyncio.TaskGroup() as group, taken(one, wanted):
        group.create_task(go(one, turn(wanted), begun))
        await until(lambda: one.lines.total == 1)
        one.turn_away(wanted)
        await until(lambda: len(begun) == 1)

    assert one.lines.total == 0


async def test_an_endpoint_that_failed_is_passed_over_until_its_breaker_lets_through() -> None:
    clock = ManualClock(100.0)
    one, wanted, begun = Admission(clock, 100), served(ONE), list[Turn]()
    async with one.lease(turn(wanted)) as lease:
        assert lease is not None
        lease.outcome = Outcome.FAILED

    async with asyncio.TaskGroup() as group:
        group.create_task(go(one, turn(wanted), begun))
        await until(lambda: one.lines.total == 1)
        clock.advance(60.0)  # Nothing tells of it; the line is looked at by itself.

    assert len(begun) == 1


async def test_where_an_answer_has_begun_others_may_go_at_once() -> None:
    clock = ManualClock(100.0)
    one, wanted, begun = Admission(clock, 100), served(ONE, places=9), list[Turn]()
    async with one.lease(turn(wanted)) as broken:
        assert broken is not None
        broken.outcome = Outcome.FAILED
    clock.advance(60.0)

    async with asyncio.TaskGroup() as group, one.lease(turn(wanted)) as first:
        group.create_task(go(one, turn(wanted), begun))
        await until(lambda: one.lines.total == 1)  # The first is the breaker's only probe.
        assert first is not None
        one.answered(first)
        one.answered(first)
        await until(lambda: len(begun) == 1)


async def test_who_waits_for_what_nobody_serves_any_more_looks_again() -> None:
    one, wanted, begun = admission(), served(ONE), list[Turn]()
    async with asyncio.TaskGroup() as group, taken(one, wanted):
        group.create_task(go(one, turn(wanted), begun))
        await until(lambda: one.lines.total == 1)
        one.turn_away_lost()
        assert one.lines.total == 1
        wanted.set_endpoints([], lambda _: next(iter(wanted)))
        one.turn_away_lost()
        await until(lambda: len(begun) == 1)
