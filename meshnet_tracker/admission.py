"""Admits a Session: its number in the mesh-wide order, its seed, its Route, and the signed ticket.

A request keeps number and seed when it is tried again on another Route; every try is a Session of
its own.
"""

import base64
import secrets
from dataclasses import dataclass
from typing import Any, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from meshnet_common.edge.clock import Clock
from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import RouteAnswer
from meshnet_common.protocol.tickets import ALGORITHM, RouteTicket, sign_ticket
from meshnet_tracker.models import ServedModel, find_model
from meshnet_tracker.planning.routes import RouteCosts, choose_route
from meshnet_tracker.records import SigningKey
from meshnet_tracker.store.store import Store
from meshnet_tracker.view import MeshView

TICKET_SECONDS = 120.0
SESSION_ID_BYTES = 16
SEED_BITS = 63
FIRST_INCARNATION = 1


@dataclass(frozen=True, slots=True)
class Admission:
    """What a request keeps over all its tries."""

    sequence: int
    seed: int


@dataclass(frozen=True, slots=True)
class RouteWish:
    """What a caller wants of a Route: Workers to avoid, and who should be the Head Worker."""

    exclude: frozenset[WorkerId] = frozenset()
    head: WorkerId | None = None


class Signer:
    """Signs Route Tickets with the Mesh's key and shows its public half."""

    def __init__(self, key: SigningKey) -> None:
        self._key_id = key.key_id
        self._private = Ed25519PrivateKey.from_private_bytes(key.secret)

    @classmethod
    async def of(cls, store: Store, now: float) -> Self:
        """Take the key of the database, or put a new one there."""
        fresh = Ed25519PrivateKey.generate().private_bytes_raw()
        return cls(await store.signing_key(SigningKey(secrets.token_hex(8), fresh), now))

    def sign(self, ticket: RouteTicket) -> str:
        return sign_ticket(ticket, self._private, self._key_id)

    def key_set(self) -> dict[str, Any]:
        """Return the public keys as a JWKS (RFC 7517, RFC 8037)."""
        public = base64.urlsafe_b64encode(self._private.public_key().public_bytes_raw())
        key = {
            "kty": "OKP",
            "crv": "Ed25519",
            "x": public.rstrip(b"=").decode(),
            "kid": self._key_id,
            "alg": ALGORITHM,
            "use": "sig",
        }
        return {"keys": [key]}


class Admissions:
    """Finds models and Routes in the Mesh as it is now."""

    def __init__(self, store: Store, view: MeshView, signer: Signer, clock: Clock) -> None:
        self._store = store
        self._view = view
        self._signer = signer
        self._clock = clock

    async def admit(self) -> Admission:
        sequence = await self._store.next_admission_seq()
        return Admission(sequence, secrets.randbits(SEED_BITS))

    async def find_model(self, name: str) -> ServedModel:
        """Find a Variant by its public name; raises UnknownModelError."""
        return find_model((await self._view.snapshot()).presets, name)

    async def route(self, model: ServedModel, admission: Admission, wish: RouteWish) -> RouteAnswer:
        """Choose the best Route of this moment and sign it; raises NoRouteError."""
        session_id = secrets.token_hex(SESSION_ID_BYTES)
        hops = choose_route(
            (await self._view.snapshot()).workers,
            model.key,
            model.layer_count,
            exclude=wish.exclude,
            head=wish.head,
            costs=RouteCosts(tie_salt=session_id),
        )
        ticket = RouteTicket(
            session_id=session_id,
            incarnation=FIRST_INCARNATION,
            admission_seq=admission.sequence,
            model=model.key.model,
            quantization=model.key.quantization,
            variant_digest=model.variant.digest,
            layer_count=model.layer_count,
            hops=hops,
            seed=admission.seed,
            expires_at=self._clock.now() + TICKET_SECONDS,
        )
        return RouteAnswer(ticket=self._signer.sign(ticket), hops=hops)
