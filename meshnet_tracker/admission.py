"""Admits a Session: its number in the mesh-wide order, its seed, its Route, and the signed ticket.

A request keeps number and seed when it is tried again on another Head Worker; every try is a
Session of its own. One that only lost its Route goes on as the same Session, one incarnation later.
"""

import base64
import secrets
from dataclasses import dataclass
from typing import Any, Self

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from meshnet_common.edge.clock import Clock
from meshnet_common.errors import TicketError
from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import RouteAnswer, RouteHop
from meshnet_common.protocol.tickets import ALGORITHM, RouteTicket, sign_ticket, verify_ticket
from meshnet_tracker.models import ServedModel, UnknownModelError, find_model, served_models
from meshnet_tracker.planning.routes import NoRouteError, RouteCosts, choose_route
from meshnet_tracker.planning.snapshot import VariantKey
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

    def verify(self, token: str) -> RouteTicket:
        """Read a ticket of this Mesh, however old it is; raises TicketError for any other."""
        return verify_ticket(token, self._private.public_key())

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

    def __init__(
        self,
        store: Store,
        view: MeshView,
        signer: Signer,
        clock: Clock,
        renewal_seconds: float,
    ) -> None:
        self._store = store
        self._view = view
        self._signer = signer
        self._clock = clock
        self._renewal_seconds = renewal_seconds

    async def admit(self) -> Admission:
        sequence = await self._store.next_admission_seq()
        return Admission(sequence, secrets.randbits(SEED_BITS))

    async def find_model(self, name: str) -> ServedModel:
        """Find a Variant by its public name; raises UnknownModelError."""
        return find_model((await self._view.snapshot()).presets, name)

    async def route(self, model: ServedModel, admission: Admission, wish: RouteWish) -> RouteAnswer:
        """Choose the best Route of this moment and sign it; raises NoRouteError."""
        session_id = secrets.token_hex(SESSION_ID_BYTES)
        hops = await self._hops(model, wish, session_id)
        now = self._clock.now()
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
            expires_at=now + TICKET_SECONDS,
            admitted_at=now,
        )
        return RouteAnswer(ticket=self._signer.sign(ticket), hops=hops)

    async def renew(self, old: RouteTicket, avoid: frozenset[WorkerId]) -> RouteAnswer:
        """Sign the next incarnation of a ticket's Session, whatever has become of its Route.

        From the same Head Worker, around the Workers to avoid if there is a way. Raises
        UnknownModelError if its Variant is no longer served, NoRouteError, or TicketError if it
        was admitted so long ago that its place in the order no longer counts.
        """
        now = self._clock.now()
        admitted_at = old.admitted_at or now
        if now > admitted_at + self._renewal_seconds:
            raise TicketError(f"Its Session was admitted {now - admitted_at:.0f} seconds ago.")
        model = await self._same_variant(old)
        head = WorkerId(old.hops[0].worker_id)
        others = avoid - {head}
        try:
            hops = await self._hops(model, RouteWish(others, head), old.session_id)
        except NoRouteError:
            if not others:
                raise
            hops = await self._hops(model, RouteWish(head=head), old.session_id)
        ticket = msgspec.structs.replace(
            old,
            incarnation=old.incarnation + 1,
            hops=hops,
            expires_at=now + TICKET_SECONDS,
            admitted_at=admitted_at,
        )
        return RouteAnswer(ticket=self._signer.sign(ticket), hops=hops)

    async def _same_variant(self, ticket: RouteTicket) -> ServedModel:
        for model in served_models((await self._view.snapshot()).presets):
            is_named = model.key == VariantKey(ticket.model, ticket.quantization)
            if is_named and model.variant.digest == ticket.variant_digest:
                return model
        raise UnknownModelError(ticket.model)

    async def _hops(
        self, model: ServedModel, wish: RouteWish, tie_salt: str
    ) -> tuple[RouteHop, ...]:
        return choose_route(
            (await self._view.snapshot()).workers,
            model.key,
            model.layer_count,
            exclude=wish.exclude,
            head=wish.head,
            costs=RouteCosts(tie_salt=tie_salt),
        )
