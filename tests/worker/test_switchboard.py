import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.bodies import (
    CloseBody,
    ErrorBody,
    OpenBody,
    PingBody,
    PongBody,
)
from meshnet_worker.engine_port import OpenSession
from meshnet_worker.generation import Generation
from meshnet_worker.head_session import HopFailedError, NoRoomError
from meshnet_worker.tickets import KeySet, SignedRoute
from meshnet_worker.tracker_client import TrackerUnreachableError
from meshnet_worker.transport.links import LinkClass
from tests.common.builders import ticket, token_of
from tests.worker.builders import GREEDY, RecordingRoom, kv_request
from tests.worker.running import PlayedEngine, RunningWorker, known_keys, running_workers
from tests.worker.waiting import SECONDS

HEAD, TAIL = WorkerId("w0"), WorkerId("w1")


@asynccontextmanager
async def head_and_tail() -> AsyncIterator[tuple[RunningWorker, RunningWorker]]:
    async with running_workers(RecordingRoom("w0"), RecordingRoom("w1")) as (head, tail):
        for worker in (head, tail):
            PlayedEngine(worker)
        yield head, tail


def route_over(head: RunningWorker, tail: RunningWorker, seed: int = 0) -> SignedRoute:
    claims = ticket(head.hop(0, 2), tail.hop(2, 4))
    return SignedRoute(claims, token_of(claims, seed))


def generation(prompt_tokens: int = 3, max_new_tokens: int = 4) -> Generation:
    return Generation(
        session_id="s1",
        epoch=(1, 0),
        prompt_ids=tuple(range(prompt_tokens)),
        max_new_tokens=max_new_tokens,
        end_ids=frozenset(),
        min_new_tokens=0,
        chunk_tokens=2,
    )


async def tokens_of(head: RunningWorker, route: SignedRoute, one: Generation) -> list[int | None]:
    async with asyncio.timeout(SECONDS), head.heads.generating(route, one, GREEDY) as tokens:
        return [token async for token in tokens]


@asynccontextmanager
async def failing(head: RunningWorker, route: SignedRoute, reason: str) -> AsyncIterator[None]:
    """Run a Session that is to fail because of what happens in the block."""

    async def run() -> None:
        with pytest.raises(HopFailedError, match=reason):
            await tokens_of(head, route, generation())

    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as tasks:
        tasks.create_task(run())
        yield


def opening(route: SignedRoute, *, draws: bool = False) -> OpenBody:
    sampling = GREEDY if draws else None
    return OpenBody(ticket=route.token, max_positions=10, sampling=sampling)


async def has_settled() -> None:
    """Let everything run that is ready to, and what it makes ready."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_session_runs_over_two_workers() -> None:
    async with head_and_tail() as (head, tail):
        one = generation(prompt_tokens=5)
        assert await tokens_of(head, route_over(head, tail), one) == [5, 6, 7, 8]
        assert [run.tokens for run in tail.recording.runs] == [2, 2, 1, 1, 1, 1]


async def test_a_session_that_is_over_leaves_nothing_on_any_hop() -> None:
    async with head_and_tail() as (head, tail):
        await tokens_of(head, route_over(head, tail), generation())
        await head.changes.until(lambda: head.is_as_before)
        await tail.changes.until(lambda: tail.is_as_before)


async def test_a_worker_that_is_the_whole_route_needs_no_wire() -> None:
    async with head_and_tail() as (head, _):
        claims = ticket(head.hop(0, 4))
        route = SignedRoute(claims, token_of(claims))
        assert await tokens_of(head, route, generation()) == [3, 4, 5, 6]
        assert head.heard == []


async def test_chunks_travel_apart_from_everything_else() -> None:
    async with head_and_tail() as (head, tail):
        await tokens_of(head, route_over(head, tail), generation())
        assert set(head.links._links) == {
            (TAIL, LinkClass.BULK),
            (TAIL, LinkClass.INTERACTIVE),
        }


async def test_a_hop_that_refuses_fails_the_session_with_its_reason() -> None:
    async with head_and_tail() as (head, tail):
        tail.recording.lend(40)
        with pytest.raises(HopFailedError, match="w1") as caught:
            await tokens_of(head, route_over(head, tail), generation())
        assert caught.value.code == "kv_capacity"
        await head.changes.until(lambda: head.is_as_before)


async def test_a_hop_that_is_full_of_older_sessions_lets_nobody_in() -> None:
    async with head_and_tail() as (head, tail):
        tail.recording.kv.reserve(kv_request(99, 249, seq=0, layers=(3, 4)))
        with pytest.raises(NoRoomError, match=r"Worker w1: .* 6 more .* 1 of 250 are free"):
            await tokens_of(head, route_over(head, tail), generation())
        await head.changes.until(lambda: head.is_as_before)


async def test_a_peer_that_cannot_be_reached_fails_the_session() -> None:
    async with head_and_tail() as (head, tail):
        tail.url = "http://127.0.0.1:1"
        with pytest.raises(HopFailedError) as caught:
            await tokens_of(head, route_over(head, tail), generation())
        assert caught.value.code == "peer_lost"


async def test_a_peer_that_hangs_up_fails_the_session() -> None:
    async with head_and_tail() as (head, tail):
        tail.play = lambda _command, _payload: None
        route = route_over(head, tail)
        async with failing(head, route, "peer_lost"):
            await tail.changes.until(lambda: tail.recording.runs)
            await head.links.close()
        await tail.changes.until(lambda: tail.is_as_before)


async def test_an_opening_that_a_stranger_signed_is_passed_over() -> None:
    async with head_and_tail() as (head, tail):
        tail.switchboard.receive(HEAD, opening(route_over(head, tail, seed=1)))
        await has_settled()
        assert tail.recording.commands == []


@pytest.mark.parametrize("draws", [True, False])
async def test_an_opening_from_another_worker_is_passed_over(draws: bool) -> None:
    async with head_and_tail() as (head, tail):
        body = opening(route_over(head, tail), draws=draws)
        tail.switchboard.receive(WorkerId("w9"), body)
        await has_settled()
        assert tail.recording.commands == []
        assert tail.recording.sessions.armed("s1", (9, 0)) is None


async def test_an_opening_costs_no_worker_while_the_tracker_is_away() -> None:
    async def fail() -> KeySet:
        raise TrackerUnreachableError("It is away.")

    async with head_and_tail() as (head, tail):
        route = route_over(head, tail)
        tail.fetch_keys = fail
        tail.switchboard.receive(HEAD, opening(route))
        await has_settled()
        assert tail.recording.commands == []
        tail.fetch_keys = known_keys
        tail.switchboard.receive(HEAD, opening(route))
        await has_settled()
        assert tail.open_sessions == 1


async def test_a_close_right_behind_its_opening_closes_it() -> None:
    async with head_and_tail() as (head, tail):
        route = route_over(head, tail)
        await tail.tickets.verify(route.token)
        tail.switchboard.receive(HEAD, opening(route))
        tail.switchboard.receive(HEAD, CloseBody(session_id="s1", epoch=(1, 0)))
        await has_settled()
        assert any(isinstance(command, OpenSession) for command, _ in tail.recording.commands)
        assert tail.is_as_before


async def test_a_fault_reaches_the_head_through_the_hop_that_hears_of_it() -> None:
    async with head_and_tail() as (head, tail):
        route = route_over(head, tail)
        head.play = lambda _command, _payload: None
        async with failing(head, route, "Worker w7"):
            await head.changes.until(lambda: head.recording.runs)
            fault = ErrorBody(session_id="s1", code="engine_lost", message="m", worker_id="w7")
            tail.switchboard.receive(WorkerId("w7"), fault)


async def test_a_ping_is_answered_with_the_age_of_the_oldest_step() -> None:
    async with head_and_tail() as (head, tail):
        head.links.send(TAIL, tail.url, LinkClass.INTERACTIVE, PingBody(nonce=5))
        await head.changes.until(lambda: head.heard)
        assert head.heard == [PongBody(nonce=5, oldest_step_seconds=0.0)]


async def test_workers_that_stop_in_the_middle_of_a_session_stop_quietly(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with head_and_tail() as (head, tail):
        tail.play = lambda _command, _payload: None
        async with AsyncExitStack() as left_open:
            route = route_over(head, tail)
            session = head.heads.generating(route, generation(), GREEDY)
            await left_open.enter_async_context(session)
            left_open.pop_all()
    assert "failed" not in capsys.readouterr().out
