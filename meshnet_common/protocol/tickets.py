"""Route Tickets: a Route signed by a Tracker, checked offline by every Hop.

A compact JWT with EdDSA (RFC 8037). Expiry gates the opening of a Session only; a running
Session lives by its lease.
"""

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from meshnet_common.errors import TicketError
from meshnet_common.protocol.messages import RouteHop

ALGORITHM = "EdDSA"

TICKET_HEADER = "x-meshnet-ticket"
"""Carries the ticket of a request that a Head Worker is asked to answer."""

# `jwt.encode` would write the claims as JSON itself, which takes longer.
_JWS = jwt.PyJWS()


class RouteTicket(msgspec.Struct, frozen=True, kw_only=True):
    """Which Session may run on which Hops; times are seconds of the Tracker's clock."""

    session_id: str
    incarnation: int
    admission_seq: int
    model: str
    quantization: str
    variant_digest: str
    layer_count: int
    hops: tuple[RouteHop, ...]
    seed: int
    expires_at: float
    admitted_at: float = 0.0
    """When its Session was admitted; it is renewed only for so long. 0 where nobody said."""
    max_positions: int = 0
    """Positions of prompt plus answer that a Hop reserves at most; 0 is no limit."""
    choice: int = 0
    """Which choice of an answer its Session is; Trackers sign the first one's only."""

    @property
    def order(self) -> tuple[int, int]:
        """Whose turn it is when memory is short: of any two Sessions one comes first."""
        return self.admission_seq, self.choice

    def of_choice(self, choice: int) -> "RouteTicket":
        """The same ticket as another choice of its answer sees it: a Session of its own.

        They share the Route, the place in the order and the incarnations, which the Tracker counts
        for all of them together: a later one is later for each. Raises TicketError for a ticket
        that is one choice's already.
        """
        if self.choice:
            raise TicketError("It is a single choice's.")
        if choice == 0:
            return self
        session_id = f"{self.session_id}.{choice}"
        return msgspec.structs.replace(self, session_id=session_id, choice=choice)

    def check_fresh(self, now: float) -> None:
        """Raise TicketError if no Session may be opened with it any more."""
        if now > self.expires_at:
            raise TicketError(f"It expired {now - self.expires_at:.1f} seconds ago.")


def sign_ticket(ticket: RouteTicket, key: Ed25519PrivateKey, key_id: str) -> str:
    """Write a ticket as a compact JWT that names its key."""
    claims = msgspec.json.encode(ticket)
    return _JWS.encode(claims, key, algorithm=ALGORITHM, headers={"kid": key_id})


def ticket_key_id(token: str) -> str:
    """Name the key that signed a ticket; raises TicketError for junk."""
    try:
        key_id = jwt.get_unverified_header(token).get("kid")
    except (jwt.PyJWTError, UnicodeError) as error:
        raise TicketError("It is not a signed ticket.") from error
    if not isinstance(key_id, str):
        raise TicketError("It names no key.")
    return key_id


def verify_ticket(token: str, key: Ed25519PublicKey) -> RouteTicket:
    """Check signature and shape, not expiry; raises TicketError."""
    try:
        claims = jwt.decode(token, key, algorithms=[ALGORITHM])
        return msgspec.convert(claims, RouteTicket)
    except (jwt.PyJWTError, UnicodeError) as error:
        raise TicketError("Its signature does not verify.") from error
    except msgspec.ValidationError as error:
        raise TicketError(f"Its claims are malformed: {error}.") from error
