"""Route Tickets as a Worker sees them: checked offline with the Tracker's public keys.

The keys are fetched once and again when a ticket names one that is not known, so a Tracker's
outage opens and closes nothing here. Whoever invents names of keys costs the Tracker one fetch
after the other, with a pause between them, and never two at a time.
"""

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from meshnet_common.edge.clock import loop_time
from meshnet_common.errors import MeshnetError, TicketError
from meshnet_common.protocol.tickets import RouteTicket, ticket_key_id, verify_ticket

KeySet = Mapping[str, Ed25519PublicKey]
FetchKeys = Callable[[], Awaitable[KeySet]]

FRESH_SECONDS = 60.0
PAUSE_SECONDS = 1.0
"""Before the next fetch after one that did not know the key it was made for."""
UNKNOWN_SECONDS = 5.0
"""So long a key that a fetch did not know is refused at once."""
MOST_UNKNOWN = 1024
MOST_WAITING = 256
"""Tickets that wait for a fetch; one more is refused."""
MOST_KEY_ID_CHARS = 128


@dataclass(frozen=True, slots=True)
class SignedRoute:
    """A verified Route Ticket and the token that proves it to the next Hop."""

    ticket: RouteTicket
    token: str

    def of_choice(self, choice: int) -> "SignedRoute":
        """The same Route as the Session of another choice sees it."""
        return SignedRoute(self.ticket.of_choice(choice), self.token)


class TicketBook:
    """Verifies tickets."""

    def __init__(self, fetch_keys: FetchKeys) -> None:
        self._fetch_keys = fetch_keys
        self._keys: KeySet = {}
        self._fetching = asyncio.Lock()
        self._fetches = _Fetches()
        self._waiting = 0

    async def verify(self, token: str) -> RouteTicket:
        """Check who signed a ticket, not whether it is fresh; raises TicketError."""
        key_id = ticket_key_id(token)
        key = self._keys.get(key_id) or await self._learned(key_id)
        return verify_ticket(token, key)

    async def keep_fresh(self) -> None:
        """Fetch the keys again and again until cancelled, so that a revoked one stops counting."""
        while True:
            await asyncio.sleep(FRESH_SECONDS)
            # One that is away changes nothing: what is known goes on counting.
            with suppress(MeshnetError):
                self._keys = await self._fetch_keys()

    async def _learned(self, key_id: str) -> Ed25519PublicKey:
        self._fetches.check_worth_it(key_id, loop_time())
        if self._waiting >= MOST_WAITING:
            raise TicketError("Too many tickets wait for the Tracker's keys.")
        self._waiting += 1
        try:
            return await self._shared(key_id)
        finally:
            self._waiting -= 1

    async def _shared(self, key_id: str) -> Ed25519PublicKey:
        """Take the key out of a fetch that began after now, whoever made it."""
        asked = self._fetches.begun
        async with self._fetching:
            if key_id not in self._keys and self._fetches.begun <= asked:
                await asyncio.sleep(self._fetches.pause_seconds(loop_time()))
                await self._fetch(key_id)
        key = self._keys.get(key_id)
        if key is None:
            self._fetches.note_unknown(key_id, loop_time())
            if self._fetches.failure is not None:
                raise self._fetches.failure.with_traceback(None)
            raise _unknown(key_id)
        return key

    async def _fetch(self, key_id: str) -> None:
        self._fetches.begun += 1
        self._fetches.failure = None
        try:
            self._keys = await self._fetch_keys()
        except MeshnetError as error:
            self._fetches.failure = error
        except BaseException:
            # Whoever made it was cancelled: it has answered nobody.
            self._fetches.begun -= 1
            raise
        else:
            if key_id not in self._keys:
                self._fetches.fruitless_at = loop_time()


class _Fetches:
    """What the fetches so far have shown."""

    def __init__(self) -> None:
        self.begun = 0
        self.fruitless_at = float("-inf")
        self.failure: MeshnetError | None = None
        """Of the last one."""
        self._unknown: dict[str, float] = {}

    def check_worth_it(self, key_id: str, now: float) -> None:
        """Raise TicketError if the Tracker need not be asked for this key."""
        if len(key_id) > MOST_KEY_ID_CHARS or now < self._unknown.get(key_id, 0.0):
            raise _unknown(key_id)

    def pause_seconds(self, now: float) -> float:
        return max(0.0, self.fruitless_at + PAUSE_SECONDS - now)

    def note_unknown(self, key_id: str, now: float) -> None:
        """A fetch did not know this key, unless it failed."""
        if self.failure is None:
            self._unknown.pop(key_id, None)
            self._unknown[key_id] = now + UNKNOWN_SECONDS
            if len(self._unknown) > MOST_UNKNOWN:
                del self._unknown[next(iter(self._unknown))]


def _unknown(key_id: str) -> TicketError:
    return TicketError(f"Its key {key_id[:MOST_KEY_ID_CHARS]} is not the Tracker's.")


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
