"""Route Tickets as a Worker sees them: checked offline with the Tracker's public keys.

The keys are fetched once and again when a ticket names one that is not known, so a Tracker's
outage opens and closes nothing here.
"""

import base64
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from meshnet_common.errors import TicketError
from meshnet_common.protocol.tickets import RouteTicket, ticket_key_id, verify_ticket

KeySet = Mapping[str, Ed25519PublicKey]
FetchKeys = Callable[[], Awaitable[KeySet]]


@dataclass(frozen=True, slots=True)
class SignedRoute:
    """A verified Route Ticket and the token that proves it to the next Hop."""

    ticket: RouteTicket
    token: str


class TicketBook:
    """Verifies tickets."""

    def __init__(self, fetch_keys: FetchKeys) -> None:
        self._fetch_keys = fetch_keys
        self._keys: KeySet = {}

    async def verify(self, token: str) -> RouteTicket:
        """Check who signed a ticket, not whether it is fresh; raises TicketError."""
        key_id = ticket_key_id(token)
        if key_id not in self._keys:
            self._keys = await self._fetch_keys()
        key = self._keys.get(key_id)
        if key is None:
            raise TicketError(f"Its key {key_id} is not the Tracker's.")
        return verify_ticket(token, key)


class _Key(msgspec.Struct):
    """A JWK (RFC 8037) as far as it is of use here."""

    kty: str = ""
    crv: str = ""
    kid: str = ""
    x: str = ""

    @property
    def signs_tickets(self) -> bool:
        return bool(self.kid) and (self.kty, self.crv) == ("OKP", "Ed25519")

    def public(self) -> Ed25519PublicKey:
        """Raises ValueError for what is no key."""
        raw = base64.urlsafe_b64decode(self.x + "=" * (-len(self.x) % 4))
        return Ed25519PublicKey.from_public_bytes(raw)


class _KeySet(msgspec.Struct):
    keys: tuple[_Key, ...]


def read_key_set(body: bytes) -> KeySet:
    """Read a JWKS (RFC 7517); raises TicketError for junk, passes other kinds of key over."""
    try:
        published = msgspec.json.decode(body, type=_KeySet).keys
        keys = {key.kid: key.public() for key in published if key.signs_tickets}
    except (ValueError, RecursionError) as error:
        # Every error of msgspec, of base64 and of a key of another length is a ValueError.
        raise TicketError(f"The Tracker's keys are malformed: {error}.") from error
    if not keys:
        raise TicketError("The Tracker shows no key.")
    return keys
