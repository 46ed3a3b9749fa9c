"""Who may say what of a Session: its Route Ticket names them, nobody else is believed; pure.

Activations and replays have the same rule where they are run. Frames of a Route that was mended
meanwhile fall out here or by their epoch: both are right.
"""

from collections.abc import Callable

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.bodies import ErrorBody, OpenedBody, ProgressBody, TokensBody
from meshnet_common.protocol.tickets import RouteTicket
from meshnet_worker.sessions import HopSession

TicketOf = Callable[[str], RouteTicket | None]


def may_tell_head(
    ticket: RouteTicket | None, sender: WorkerId, body: OpenedBody | ProgressBody | ErrorBody
) -> bool:
    """Whether a Worker may tell this to the Head Worker of a Session with this ticket."""
    if ticket is None:
        return False
    if isinstance(body, OpenedBody):
        return _is_tail(ticket, sender)
    return _is_hop(ticket, sender)


def believed_tokens(body: TokensBody, sender: WorkerId, ticket_of: TicketOf) -> TokensBody:
    """The tokens of a frame whose Sessions have the sender as their Tail Worker."""
    tokens = tuple(
        token
        for token in body.tokens
        if (ticket := ticket_of(token.session_id)) is not None and _is_tail(ticket, sender)
    )
    return body if len(tokens) == len(body.tokens) else TokensBody(tokens=tokens)


def may_close(session: HopSession | None, sender: WorkerId) -> bool:
    """Whether a Worker may close a Session here: its previous Hop or its Head Worker.

    One that is not open yet may be closed by anybody: the news has overtaken its opening.
    """
    if session is None:
        return True
    return any(
        hop is not None and hop.worker_id == sender for hop in (session.previous, session.head)
    )


def may_have_passed_on(session: HopSession | None, sender: WorkerId) -> bool:
    """Whether a Worker may tell a Hop of a fault that the Head Worker is to hear of."""
    return session is not None and _is_hop(session.ticket, sender)


def _is_tail(ticket: RouteTicket, sender: WorkerId) -> bool:
    return ticket.hops[-1].worker_id == sender


def _is_hop(ticket: RouteTicket, sender: WorkerId) -> bool:
    return any(hop.worker_id == sender for hop in ticket.hops)
