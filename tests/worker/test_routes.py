from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from meshnet_common.edge.clock import ManualClock
from meshnet_common.errors import TicketError
from meshnet_common.ids import WorkerId
from meshnet_common.protocol.tickets import RouteTicket
from meshnet_worker.routes import Routes
from meshnet_worker.tickets import TicketBook
from meshnet_worker.tracker_client import TrackerClient
from tests.common.builders import NOW, hop, ticket, token_of
from tests.worker.head_routes import ROUTE
from tests.worker.running import known_keys
from tests.worker.small_tracker import SmallTracker, small_tracker


@asynccontextmanager
async def head_worker() -> AsyncIterator[tuple[Routes, SmallTracker]]:
    async with small_tracker() as tracker:
        client = TrackerClient(tracker.url)
        try:
            yield (
                Routes(WorkerId("w0"), client, TicketBook(known_keys), ManualClock(NOW)),
                tracker,
            )
        finally:
            await client.close()


async def test_a_ticket_that_came_along_needs_no_tracker() -> None:
    async with head_worker() as (routes, tracker):
        assert await routes.first(token_of(ticket()), "tiny", None) == ROUTE
        assert tracker.routes == []


async def test_without_one_the_tracker_is_asked_with_the_clients_key() -> None:
    async with head_worker() as (routes, tracker):
        tracker.ticket = token_of(ticket())
        assert await routes.first(None, "tiny", "Bearer sk-1") == ROUTE
        assert tracker.routes == [("tiny", "w0", "Bearer sk-1")]


async def test_a_fresh_ticket_is_had_for_the_old_one() -> None:
    async with head_worker() as (routes, tracker):
        tracker.ticket = token_of(ticket(incarnation=2))
        fresh = await routes.renewed(ROUTE, frozenset({"w2", "w1"}))
        assert fresh.ticket.incarnation == 2
        (asked,) = tracker.renewals
        assert (asked.ticket, asked.avoid) == (ROUTE.token, ("w1", "w2"))


@pytest.mark.parametrize(
    "claims",
    [
        pytest.param(ticket(session_id="s9"), id="another Session's"),
        pytest.param(ticket(hop("w9", 0, 4)), id="another Head Worker's"),
        pytest.param(ticket(expires_at=NOW - 1), id="an expired one"),
    ],
)
async def test_a_fresh_ticket_that_does_not_fit_is_refused(claims: RouteTicket) -> None:
    async with head_worker() as (routes, tracker):
        tracker.ticket = token_of(claims)
        with pytest.raises(TicketError):
            await routes.renewed(ROUTE, frozenset())


async def test_a_choice_goes_on_as_the_same_choice() -> None:
    async with head_worker() as (routes, tracker):
        tracker.ticket = token_of(ticket(incarnation=2))
        fresh = await routes.renewed(ROUTE.of_choice(3), frozenset())
        assert (fresh.ticket.session_id, fresh.ticket.choice) == ("s1.3", 3)
        (asked,) = tracker.renewals
        assert asked.ticket == ROUTE.token
