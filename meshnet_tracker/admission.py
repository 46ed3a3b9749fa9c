"""Admits a Session: its number in the mesh-wide order, its seed, its Route, and the signed ticket.

A request keeps number and seed when it is tried again on another Head Worker; every try is a
Session of its own. One whose Route or Head Worker fails goes on as the same Session, one
incarnation later; the database counts them, so that no two are ever the same.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from meshnet_common.edge.clock import Clock
from meshnet_common.errors import TicketError
from meshnet_common.ids import WorkerId
from meshnet_common.presets import DTYPE_BYTES
from meshnet_common.protocol.messages import RouteAnswer, RouteHop
from meshnet_common.protocol.tickets import RouteTicket
from meshnet_tracker.batches import Batches
from meshnet_tracker.models import Catalogue, ServedModel, UnknownModelError
from meshnet_tracker.planning.mending import Detour, mend_route
from meshnet_tracker.planning.rebalance import coming_variants
from meshnet_tracker.planning.route_table import RouteTable
from meshnet_tracker.planning.routes import RouteCosts, choose_route
from meshnet_tracker.planning.snapshot import MeshSnapshot, VariantKey
from meshnet_tracker.public_names import PublicNames
from meshnet_tracker.records import Renewals
from meshnet_tracker.settings import TrackerSettings
from meshnet_tracker.signing import TICKET_SECONDS, Signer
from meshnet_tracker.store.store import Store
from meshnet_tracker.view import MeshView

SESSION_ID_BYTES = 16
EXPECTED_POSITIONS = 1024
"""What a Session is expected to need of keys and values: a prompt and its answer, on average."""
REPORTS_AFTER_SECONDS = 1.0
"""So long after its next heartbeat a Worker's report has counted a Session that is given to it."""
NUMBERS_PAUSE_SECONDS = 0.05
"""Between turns in which numbers are taken: each is a transaction, however few ask for one."""
SEED_BITS = 63
FIRST_INCARNATION = 1


class SupersededHeadError(TicketError):
    """The Session has another Head Worker now."""


class ForgottenSessionError(TicketError):
    """The Session was not heard of for too long to go on; send the request again."""


@dataclass(frozen=True, slots=True)
class Admission:
    """What a request keeps over all its tries."""

    sequence: int
    seed: int
    affinity: str = ""
    """Names how its conversation begins: alike ones get the same Workers if that costs little."""


@dataclass(frozen=True, slots=True)
class RouteWish:
    """What a caller wants of a Route: Workers to avoid, and who should be the Head Worker."""

    exclude: frozenset[WorkerId] = frozenset()
    head: WorkerId | None = None


class Admissions:
    """Finds models and Routes in the Mesh as it is now."""

    def __init__(
        self,
        store: Store,
        view: MeshView,
        signer: Signer,
        clock: Clock,
        settings: TrackerSettings,
    ) -> None:
        self._store = store
        self._view = view
        self._signer = signer
        self._clock = clock
        self._settings = settings
        self.names = PublicNames(store)
        self._planning = asyncio.Lock()
        self._sequences = Batches(self._take_numbers, NUMBERS_PAUSE_SECONDS)
        self._coming: tuple[MeshSnapshot, frozenset[VariantKey]] | None = None

    async def admit(self, affinity: str = "") -> Admission:
        sequence = await self._sequences.submit(None)
        return Admission(sequence, secrets.randbits(SEED_BITS), affinity)

    async def find_model(self, name: str) -> ServedModel:
        """Find what answers under a name, a Canary included; raises UnknownModelError."""
        return await self._look_up(lambda catalogue: catalogue.find(name))

    async def find_public_model(self, name: str) -> ServedModel:
        """Find what answers a client under a public name; raises UnknownModelError."""
        return await self._look_up(lambda catalogue: catalogue.find_public(name))

    async def find_canary(self, name: str) -> ServedModel:
        """Find a Canary by its own name; raises UnknownModelError."""
        return await self._look_up(lambda catalogue: catalogue.find_canary(name))

    async def model_of(self, ticket: RouteTicket) -> ServedModel:
        """Find the Variant of a ticket; raises UnknownModelError if it is served no more."""
        key, digest = VariantKey(ticket.model, ticket.quantization), ticket.variant_digest
        return await self._look_up(lambda catalogue: catalogue.find_variant(key, digest))

    async def _look_up(self, find: Callable[[Catalogue], ServedModel]) -> ServedModel:
        names = await self.names.book()
        try:
            return find(Catalogue(await self._view.presets(), names))
        except UnknownModelError:
            # What was read may be older than the command that made this name known.
            names = await self.names.newer_book()
            self._view.forget()
            return find(Catalogue(await self._view.presets(), names))

    async def route(self, model: ServedModel, admission: Admission, wish: RouteWish) -> RouteAnswer:
        """Choose the best Route of this moment and sign it; raises NoRouteError."""
        session_id = secrets.token_hex(SESSION_ID_BYTES)
        table = await self._routes()
        hops = choose_route(
            table,
            model.key,
            model.layer_count,
            exclude=wish.exclude,
            head=wish.head,
            costs=_costs(model, session_id, admission.affinity),
        )
        now = self._clock.now()
        table.note(hops, now, self._report_seconds)
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
            max_positions=model.preset.context_tokens,
        )
        return RouteAnswer(ticket=self._signer.sign(ticket), hops=hops)

    def ended(self, hops: Sequence[RouteHop]) -> None:
        """Hear that the Session on these Hops is over, before their Workers report it."""
        self._view.table.note_end(hops, self._clock.now(), self._report_seconds)

    async def check_route(self, model: ServedModel) -> None:
        """Raise NoRouteError if there is no Route, whomever it leads through."""
        choose_route(await self._routes(), model.key, model.layer_count)

    async def check_renewable(self, old: RouteTicket) -> None:
        """Refuse a ticket whose Session goes on elsewhere, or was not renewed for too long.

        Raises SupersededHeadError and ForgottenSessionError.
        """
        renewals = await self._check_age(old)
        if old.incarnation < renewals.head_since:
            raise SupersededHeadError(f"Its ticket is incarnation {old.incarnation}.")

    async def renew(
        self,
        old: RouteTicket,
        avoid: frozenset[WorkerId] = frozenset(),
        faulty: frozenset[WorkerId] = frozenset(),
    ) -> RouteAnswer:
        """Sign the next incarnation of a ticket's Session, on its Route as far as that is left.

        From the same Head Worker, around the faulty Workers and those to avoid if there is a way,
        else through those to avoid, else through the faulty ones, as far as they are not lost.
        Raises UnknownModelError if its Variant is no longer served, NoRouteError, and TicketErrors
        as `check_renewable` does.
        """
        await self.check_renewable(old)
        head = WorkerId(old.hops[0].worker_id)
        sets = ((avoid | faulty) - {head}, faulty - {head}, frozenset[WorkerId]())
        hops = await self._mended(old, Detour(tuple(dict.fromkeys(sets)), head))
        incarnation = await self._store.next_incarnation(
            old.session_id, old.incarnation, self._clock.now()
        )
        if incarnation is None:
            raise SupersededHeadError(f"Its ticket is incarnation {old.incarnation}.")
        return self._reissued(old, hops, incarnation)

    async def move_head(self, old: RouteTicket, avoid: frozenset[WorkerId]) -> RouteAnswer:
        """Sign the next incarnation of a Session with another Head Worker, the other Hops kept.

        Nobody in `avoid` is on the Route. The old Head Worker takes part only where no other is
        found and it is not in `avoid`. From now on no older ticket of this Session is renewed.
        Raises UnknownModelError, NoRouteError, and ForgottenSessionError.
        """
        await self._check_age(old)
        sets = (avoid | {WorkerId(old.hops[0].worker_id)}, avoid)
        hops = await self._mended(old, Detour(tuple(dict.fromkeys(sets))))
        incarnation = await self._store.move_head(
            old.session_id, old.incarnation, self._clock.now()
        )
        return self._reissued(old, hops, incarnation)

    async def may_come_back(self, model: ServedModel) -> bool:
        """Tell whether loads that are under way, or that can be ordered, close all its gaps."""
        async with self._planning:
            snapshot = await self._view.snapshot()
            if self._coming is None or self._coming[0] is not snapshot:
                coming = await asyncio.to_thread(
                    coming_variants, snapshot, self._settings.policy, self._clock.now()
                )
                self._coming = snapshot, coming
            return model.key in self._coming[1]

    async def _check_age(self, old: RouteTicket) -> Renewals:
        renewals = await self._store.renewals(old.session_id)
        signed_at = old.expires_at - TICKET_SECONDS
        age_seconds = self._clock.now() - max(signed_at, renewals.renewed_at)
        if age_seconds > self._settings.renewal_seconds:
            raise ForgottenSessionError(f"Its last ticket is {age_seconds:.0f} seconds old.")
        return renewals

    async def _mended(self, old: RouteTicket, detour: Detour) -> tuple[RouteHop, ...]:
        model = await self.model_of(old)
        table = await self._routes()
        hops = mend_route(table, model.key, old.hops, detour, _costs(model, old.session_id))
        known = {hop.worker_id for hop in old.hops}
        fresh = [hop for hop in hops if hop.worker_id not in known]
        table.note(fresh, self._clock.now(), self._report_seconds)
        return hops

    @property
    def _report_seconds(self) -> float:
        """When a Worker has reported a Session that is given to it now."""
        return self._settings.heartbeat_seconds + REPORTS_AFTER_SECONDS

    async def _routes(self) -> RouteTable:
        """Return the Route Table of this moment."""
        table = await self._view.routes()
        table.settle(self._clock.now())
        return table

    async def _take_numbers(self, callers: Sequence[None]) -> Sequence[int]:
        """Take a number for each of those who came in a moment, in the order of their coming."""
        last = await self._store.next_admission_seq(len(callers))
        return range(last - len(callers) + 1, last + 1)

    def _reissued(
        self, old: RouteTicket, hops: Sequence[RouteHop], incarnation: int
    ) -> RouteAnswer:
        now = self._clock.now()
        ticket = msgspec.structs.replace(
            old,
            incarnation=incarnation,
            hops=tuple(hops),
            expires_at=now + TICKET_SECONDS,
            admitted_at=old.admitted_at or now,
        )
        return RouteAnswer(ticket=self._signer.sign(ticket), hops=ticket.hops)


def _costs(model: ServedModel, session_id: str, affinity: str = "") -> RouteCosts:
    return RouteCosts(
        tie_salt=session_id,
        affinity=affinity,
        kv_bytes_per_layer=model.variant.kv_bytes_per_token_per_layer * EXPECTED_POSITIONS,
        hop_bytes=model.preset.hidden_size * DTYPE_BYTES[model.variant.wire_dtype],
    )
