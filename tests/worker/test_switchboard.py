import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.bodies import (
    ChosenToken,
    CloseBody,
    ErrorBody,
    OpenBody,
    OpenedBody,
    PingBody,
    PongBody,
    ProgressBody,
    ReplayBody,
    TokensBody,
)
from meshnet_worker.engine_port import OpenSession
from meshnet_worker.generation import Generation
from meshnet_worker.head_session import HopFailedError, NoRoomError, RouteLostError
from meshnet_worker.tickets import KeySet, SignedRoute
from meshnet_worker.tracker_client import TrackerUnreachableError
from meshnet_worker.transport import dialling
from meshnet_worker.transport.links import LinkClass
from meshnet_worker.transport.sockets import hang_up
from tests.common.builders import hop, ticket, token_of
from tests.worker.builders import GREEDY, RecordingRoom, kv_request
from tests.worker.head_routes import generating
from tests.worker.running import PlayedEngine, RunningWorker, known_keys, running_workers
from tests.worker.transport.ends import dialled, wire
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
    async with asyncio.timeout(SECONDS), generating(head.heads, route, one) as tokens:
        return [token async for token in tokens]


@asynccontextmanager
async def running(head: RunningWorker, route: SignedRoute) -> AsyncIterator[None]:
    """Run a Session until the block ends."""

    async def run() -> None:
        await tokens_of(head, route, generation())

    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(run())
        yield
        task.cancel()


def told(head: RunningWorker) -> list[tuple[str, str]]:
    """The faults that a Head Worker heard of: what, and who."""
    bodies = (*head.heard, *head.recording.bodies_to(HEAD))
    return [(body.code, body.worker_id) for body in bodies if isinstance(body, ErrorBody)]


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


async def test_a_peer_that_cannot_be_reached_is_at_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialling, "BACK_OFF_SECONDS", ())
    async with head_and_tail() as (head, tail):
        tail.url = "http://127.0.0.1:1"
        with pytest.raises(RouteLostError):
            await tokens_of(head, route_over(head, tail), generation())
        assert set(told(head)) == {("peer_lost", "w1")}


async def test_a_peer_that_hangs_up_is_at_fault() -> None:
    async with head_and_tail() as (head, tail):
        tail.play = lambda _command, _payload: None
        async with running(head, route_over(head, tail)):
            await tail.changes.until(lambda: tail.recording.runs)
            await tail.links.close()
            await head.changes.until(lambda: ("peer_lost", "w1") in told(head))


async def test_a_session_goes_on_over_links_that_were_cut() -> None:
    async with head_and_tail() as (head, tail):
        one, route, chosen = generation(), route_over(head, tail), []
        async with asyncio.timeout(SECONDS), generating(head.heads, route, one) as tokens:
            async for token in tokens:
                chosen.append(token)
                if len(chosen) == 2:
                    for link in head.links._watch:
                        hang_up(link.websocket)
        assert chosen == [3, 4, 5, 6]
        await head.changes.until(lambda: head.is_as_before)
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
        head.play = lambda _command, _payload: None
        async with running(head, route_over(head, tail)):
            await head.changes.until(lambda: head.recording.runs)
            fault = ErrorBody(session_id="s1", code="engine_lost", message="m", worker_id="w7")
            tail.switchboard.receive(WorkerId("w9"), fault)
            tail.switchboard.receive(HEAD, fault)
            await head.changes.until(lambda: fault in head.heard)
            assert tail.recording.bodies_to(HEAD).count(fault) == 1


async def test_a_strangers_word_counts_for_nothing_at_the_head() -> None:
    token = ChosenToken("s1", (1, 0), 3, 99)
    words = (
        TokensBody(tokens=(token,)),
        ProgressBody(session_id="s1", epoch=(1, 0), position=3),
        OpenedBody(session_id="s1", epoch=(1, 0), held=(9, 9), credits=8),
        ErrorBody(session_id="s1", code="engine_lost", message="m", worker_id="w1"),
    )
    async with head_and_tail() as (head, tail):
        async with asyncio.TaskGroup() as tasks:
            tokens = tasks.create_task(tokens_of(head, route_over(head, tail), generation()))
            await has_settled()
            for body in words:
                head.switchboard.receive(WorkerId("w9"), body)
        assert tokens.result() == [3, 4, 5, 6]


async def test_a_session_is_closed_by_no_stranger() -> None:
    async with head_and_tail() as (head, tail):
        close = CloseBody(session_id="s1", epoch=(1, 0))
        tail.switchboard.receive(HEAD, opening(route_over(head, tail)))
        await has_settled()
        tail.switchboard.receive(WorkerId("w9"), close)
        await has_settled()
        assert tail.open_sessions == 1
        tail.switchboard.receive(HEAD, close)
        await has_settled()
        assert tail.is_as_before


async def test_what_a_hop_sent_is_sent_again_for_the_head_only() -> None:
    replay = ReplayBody(session_id="s1", epoch=(1, 0), start=0, tokens=3, last_hop=2)
    claims = ticket(hop("w7", 0, 1), hop("w0", 1, 2), hop("w1", 2, 4))
    async with head_and_tail() as (middle, _):
        middle.switchboard.receive(WorkerId("w7"), opening(SignedRoute(claims, token_of(claims))))
        await has_settled()
        for sender in ("w9", "w1", "w7"):
            middle.switchboard.receive(WorkerId(sender), replay)
        faults = middle.recording.bodies_to("w7")
        assert [body.code for body in faults if isinstance(body, ErrorBody)] == ["not_kept"]


async def test_a_ping_is_answered_with_the_age_of_the_oldest_step() -> None:
    async with head_and_tail() as (head, _):
        async with dialled(head.url, "worker_id=w9") as websocket:
            await websocket.send_bytes(wire(PingBody(nonce=5)))
            answer = await websocket.receive_bytes()
        assert answer == wire(PongBody(nonce=5, oldest_step_seconds=0.0))
        assert head.heard == []


async def test_workers_that_stop_in_the_middle_of_a_session_stop_quietly(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with head_and_tail() as (head, tail):
        tail.play = lambda _command, _payload: None
        async with AsyncExitStack() as left_open:
            route = route_over(head, tail)
            session = generating(head.heads, route, generation())
            await left_open.enter_async_context(session)
            left_open.pop_all()
    assert "failed" not in capsys.readouterr().out
