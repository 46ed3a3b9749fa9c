"""Signs Route Tickets with the Mesh's newest key, and knows those that signed older tickets.

A key that was replaced still verifies for as long as a Session that it admitted may be renewed. The
keys lie in the database: a Tracker takes a new one when its watcher looks, or when it is shown one.
"""

import base64
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from meshnet_common.edge.clock import Clock
from meshnet_common.errors import TicketError
from meshnet_common.protocol.tickets import (
    ALGORITHM,
    RouteTicket,
    sign_ticket,
    ticket_key_id,
    verify_ticket,
)
from meshnet_tracker.records import SigningKey
from meshnet_tracker.store.store import Store

TICKET_SECONDS = 120.0
KEY_ID_BYTES = 8


class Signer:
    """The keys of this Mesh, as this Tracker knows them."""

    def __init__(self, store: Store, clock: Clock, renewal_seconds: float) -> None:
        self._store = store
        self._clock = clock
        self._renewal_seconds = renewal_seconds
        self._newest = ""
        self._keys: Mapping[str, Ed25519PrivateKey] = {}

    @classmethod
    async def of(cls, store: Store, clock: Clock, renewal_seconds: float) -> Self:
        """Take the keys of the database, or put a first one there."""
        await store.first_signing_key(fresh_key(clock.now()))
        signer = cls(store, clock, renewal_seconds)
        await signer.refresh()
        return signer

    async def refresh(self) -> None:
        """Take the keys that live now, and let the database forget the others."""
        known = await self._store.signing_keys()
        alive = live_keys(known, self._renewal_seconds, self._clock.now())
        if dead := [key.key_id for key in known if key not in alive]:
            await self._store.forget_signing_keys(dead)
        if [key.key_id for key in alive] != list(self._keys):
            self._newest = alive[0].key_id
            self._keys = {
                key.key_id: Ed25519PrivateKey.from_private_bytes(key.secret) for key in alive
            }

    def sign(self, ticket: RouteTicket) -> str:
        return sign_ticket(ticket, self._keys[self._newest], self._newest)

    async def verify(self, token: str) -> RouteTicket:
        """Read a ticket of this Mesh, however old it is; raises TicketError for any other."""
        key_id = ticket_key_id(token)
        if key_id not in self._keys:
            await self.refresh()
        key = self._keys.get(key_id)
        if key is None:
            raise TicketError("Its key is not, or no longer, one of this Mesh's.")
        return verify_ticket(token, key.public_key())

    def key_set(self) -> dict[str, Any]:
        """Return the public keys as a JWKS (RFC 7517, RFC 8037), the newest first."""
        return {"keys": [_public_half(key_id, key) for key_id, key in self._keys.items()]}


def fresh_key(now: float) -> SigningKey:
    """Make a key that nobody has seen."""
    secret = Ed25519PrivateKey.generate().private_bytes_raw()
    return SigningKey(secrets.token_hex(KEY_ID_BYTES), secret, now)


def live_until(keys: Sequence[SigningKey], renewal_seconds: float) -> list[float]:
    """Say of each key, newest first, until when tickets count that it signed.

    The newest has no end. Another one signed its last ticket a moment after the next was made.
    """
    ends = [key.created_at + renewal_seconds + TICKET_SECONDS for key in keys[:-1]]
    return [float("inf"), *ends][: len(keys)]


def live_keys(
    keys: Sequence[SigningKey], renewal_seconds: float, now: float
) -> tuple[SigningKey, ...]:
    """Choose those, of keys given newest first, whose tickets still count."""
    ends = live_until(keys, renewal_seconds)
    return tuple(key for key, end in zip(keys, ends, strict=True) if now <= end)


def _public_half(key_id: str, key: Ed25519PrivateKey) -> Mapping[str, str]:
    public = base64.urlsafe_b64encode(key.public_key().public_bytes_raw())
    return {
        "kty": "OKP",
        "crv": "Ed25519",
        "x": public.rstrip(b"=").decode(),
        "kid": key_id,
        "alg": ALGORITHM,
        "use": "sig",
    }
