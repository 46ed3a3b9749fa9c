"""All Hops of a Route in one object that answers at once; what a Head Worker says is kept."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from meshnet_common.edge.clock import ManualClock
from meshnet_common.openai.errors import ApiError
from meshnet_common.protocol.bodies import (
    SEGMENT_SAMPLE,
    ActivationFrame,
    Body,
    ChosenToken,
    CloseBody,
    Epoch,
    ErrorBody,
    KvFigures,
    OpenBody,
    OpenedBody,
    ProgressBody,
    ReplayBody,
    Segment,
    TokensBody,
)
from meshnet_common.protocol.messages import HopFault, RouteHop
from meshnet_common.protocol.tickets import RouteTicket, verify_ticket
from meshnet_worker.generation import Generation
from meshnet_worker.head import Heads
from meshnet_worker.head_driver import HeadRoom
from meshnet_worker.head_tokens import Asked, Tokens
from meshnet_worker.tickets import SignedRoute
from meshnet_worker.tracker_client import TrackerUnreachableError
from tests.common.builders import NOW, signing_key, ticket, token_of
from tests.worker.builders import GREEDY
from tests.worker.waiting import SECONDS, Changes, start_task

EPOCH = (1, 0)
FULL = KvFigures(needed=3, free=1, total=10, capacity=640)


def signed(claims: RouteTicket) -> SignedRoute:
    return SignedRoute(claims, token_of(claims))


ROUTE = signed(ticket())


def generation(
    prompt_tokens: int = 3,
    max_new_tokens: int = 4,
    chunk_tokens: int = 128,
    session_id: str = "s1",
) -> Generation:
    return Generation(
        session_id=session_id,
        epoch=EPOCH,
        prompt_ids=tuple(range(10, 10 + prompt_tokens)),
        max_new_tokens=max_new_tokens,
        end_ids=frozenset({0}),
        min_new_tokens=0,
        chunk_tokens=chunk_tokens,
    )


def fault(
    code: str = "kv_exhausted",
    session_id: str = "s1",
    epoch: Epoch | None = None,
    kv: KvFigures | None = None,
) -> ErrorBody:
    return ErrorBody(
        session_id=session_id, code=code, message="full", worker_id="w1", epoch=epoch, kv=kv
    )


@asynccontextmanager
async def generating(
    heads: Heads, route: SignedRoute = ROUTE, one: Generation | None = None
) -> AsyncIterator[AsyncIterator[int | None]]:
    """The token ids of an answer with one choice."""
    async with heads.generating(Asked(route, one or generation(), GREEDY)) as tokens:
        yield _ids(tokens)


async def _ids(tokens: Tokens) -> AsyncIterator[int | None]:
    async for token in tokens:
        yield None if token is None else token.token_id


class Route:
    """Each token is its own position; `refuses` answers so many openings with a fault instead."""

    def __init__(
        self,
        *,
        answers: bool = True,
        wait_seconds: float = 0.0,
        mend_seconds: float = 0.0,
        is_stuck: bool = False,
        let_go: Callable[[str], None] = lambda _session_id: None,
    ) -> None:
        self.clock = ManualClock(NOW)
        room = HeadRoom(self.dispatch, self.renew, self.clock, wait_seconds, start_task)
        self.heads = Heads(
            replace(room, mend_seconds=mend_seconds, is_stuck=lambda: is_stuck, let_go=let_go)
        )
        self.sent: list[tuple[str, Body]] = []
        self.answers = answers
        self.credits = 8
        self.capacity = 0
        self.refusals: list[ErrorBody] = []
        self.refusals_begin_at = 1
        """With which opening of the first Hop."""
        self.faults_at: dict[int, ErrorBody] = {}
        """Faults that come instead of the tokens of these positions, once each."""
        self.faults_in_turn: dict[int, list[ErrorBody]] = {}
        """The same, one each time."""
        self.always_fails_at: dict[int, ErrorBody] = {}
        self.has_tracker = True
        self.refuses: ApiError | None = None
        """What the Tracker answers instead of a fresh Route."""
        self.hops_of_next: tuple[RouteHop, ...] = ()
        self.reopenings: list[dict[str, tuple[int, ...]]] = []
        """What the Hops of each opening after the first still have."""
        self.avoided: list[frozenset[str]] = []
        self.reported: list[tuple[HopFault, ...]] = []
        self.changes = Changes()

    async def renew(
        self, route: SignedRoute, avoid: frozenset[str], faults: tuple[HopFault, ...]
    ) -> SignedRoute:
        self.avoided.append(avoid)
        self.reported.append(faults)
        self.changes.tell()
        if not self.has_tracker:
            raise TrackerUnreachableError
        if self.refuses is not None:
            raise self.refuses
        old = route.ticket
        session_id, _, _ = old.session_id.partition(".")
        fresh = ticket(
            *self.hops_of_next,
            session_id=session_id,
            admission_seq=old.admission_seq,
            incarnation=old.incarnation + 1,
        )
        return signed(fresh).of_choice(old.choice)

    def dispatch(self, hop: RouteHop, body: Body) -> None:
        self.sent.append((hop.worker_id, body))
        self.changes.tell()
        if self.answers:
            asyncio.get_running_loop().call_soon(self.answer, body)
            asyncio.get_running_loop().call_soon(self.changes.tell)

    def answer(self, body: Body) -> None:
        match body:
            case OpenBody(sampling=None) if (
                self.refusals and len(self.openings) >= self.refusals_begin_at
            ):
                self.heads.on_error(self.refusals.pop(0))
            case OpenBody(sampling=None):
                self.open(body)
            case ActivationFrame():
                for segment in body.header.segments:
                    self.run(segment)
            case ReplayBody():
                end = body.start + body.tokens
                self.heads.on_progress(
                    ProgressBody(session_id=body.session_id, epoch=body.epoch, position=end)
                )
            case _:
                pass

    def open(self, body: OpenBody) -> None:
        claims = verify_ticket(body.ticket, signing_key().public_key())
        is_first = (claims.incarnation, body.rollback) == EPOCH
        has = {} if is_first or not self.reopenings else self.reopenings.pop(0)
        self.heads.on_opened(
            OpenedBody(
                session_id=claims.of_choice(body.choice).session_id,
                epoch=(claims.incarnation, body.rollback),
                held=has.get("held", (0, 0)),
                kept=has.get("kept", (0, 0)),
                credits=self.credits,
                capacity=self.capacity,
            )
        )

    def run(self, segment: Segment) -> None:
        end = segment.start + segment.tokens
        session_id, epoch = segment.session_id, segment.epoch
        if not segment.flags & SEGMENT_SAMPLE:
            self.heads.on_progress(ProgressBody(session_id=session_id, epoch=epoch, position=end))
        elif end in self.always_fails_at:
            self.heads.on_error(self.always_fails_at[end])
        elif self.faults_in_turn.get(end):
            self.heads.on_error(self.faults_in_turn[end].pop(0))
        elif end in self.faults_at:
            self.heads.on_error(self.faults_at.pop(end))
        else:
            self.heads.on_tokens(TokensBody(tokens=(ChosenToken(session_id, epoch, end, end),)))

    @property
    def segments(self) -> list[Segment]:
        return [
            segment
            for _, body in self.sent
            if isinstance(body, ActivationFrame)
            for segment in body.header.segments
        ]

    @property
    def openings(self) -> list[OpenBody]:
        """What was said to the first Hop."""
        return [b for to, b in self.sent if to == "w0" and isinstance(b, OpenBody)]

    @property
    def closes(self) -> list[str]:
        return [worker_id for worker_id, body in self.sent if isinstance(body, CloseBody)]

    async def tokens(
        self, one: Generation | None = None, route: SignedRoute = ROUTE
    ) -> list[int | None]:
        async with asyncio.timeout(SECONDS), generating(self.heads, route, one) as tokens:
            return [token async for token in tokens]
