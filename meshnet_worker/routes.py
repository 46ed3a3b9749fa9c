"""The signed Routes of this Head Worker's Sessions: the first one, and fresh ones later."""

from meshnet_common.edge.clock import Clock
from meshnet_common.errors import TicketError
from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import HopFault
from meshnet_worker.tickets import SignedRoute, TicketBook
from meshnet_worker.tracker_client import TrackerClient


class Routes:
    """Fetches Routes that begin on this Worker and checks who signed them."""

    def __init__(
        self, worker_id: WorkerId, tracker: TrackerClient, tickets: TicketBook, clock: Clock
    ) -> None:
        self._worker_id = worker_id
        self._tracker = tracker
        self._tickets = tickets
        self._clock = clock

    async def first(self, token: str | None, model: str, authorization: str | None) -> SignedRoute:
        """Check the ticket that came with a request, or fetch one with the client's key.

        Raises TicketError, TrackerUnreachableError, or ApiError as the Tracker answered.
        """
        if token is None:
            token = await self._tracker.route(model, self._worker_id, authorization)
        return await self._checked(token)

    async def renewed(
        self, route: SignedRoute, avoid: frozenset[str], faults: tuple[HopFault, ...] = ()
    ) -> SignedRoute:
        """Fetch a fresh ticket for the same Session; raises what `first` raises."""
        token = await self._tracker.renew(route.token, avoid, faults)
        fresh = (await self._checked(token)).of_choice(route.ticket.choice)
        if fresh.ticket.session_id != route.ticket.session_id:
            raise TicketError("It is another Session's.")
        return fresh

    async def _checked(self, token: str) -> SignedRoute:
        ticket = await self._tickets.verify(token)
        ticket.check_fresh(self._clock.now())
        if ticket.hops[0].worker_id != self._worker_id:
            raise TicketError("Its Head Worker is another one.")
        return SignedRoute(ticket, token)
