"""Three Workers whose Hops are real and whose wires and engines are queues; no time but a counter.

Everything that decides about KV is the Worker's own: budgets, admission, preemption, the queue of
a Head Worker and its generations. Whoever drives this chooses what happens next.
"""

from collections import defaultdict, deque
from random import Random

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.bodies import (
    SEGMENT_PREFILL,
    ActivationFrame,
    ActivationsHeader,
    Body,
    ChosenToken,
    CloseBody,
    ErrorBody,
    OpenBody,
    OpenedBody,
    ProgressBody,
    ReplayBody,
    Segment,
    TokensBody,
)
from meshnet_common.protocol.messages import RouteHop
from meshnet_common.protocol.sampling import History
from meshnet_common.protocol.tickets import RouteTicket
from meshnet_worker.generation import Generation
from meshnet_worker.requeue import BAD_TICKET, MENDABLE, goes_on
from meshnet_worker.waiting_room import Go
from tests.common.builders import ticket
from tests.worker.builders import GREEDY
from tests.worker.kv_answers import ROUTES, Answer, Link
from tests.worker.kv_worker import BLOCK_POSITIONS, POOL_BLOCKS, SimWorker


class SimMesh:
    """Workers, wires and answers."""

    def __init__(self) -> None:
        self.now = 0.0
        self.workers = {name: SimWorker(name, self.send, lambda: self.now) for name in POOL_BLOCKS}
        self.wires: dict[Link, deque[Body]] = defaultdict(deque)
        self.answers: dict[str, Answer] = {}
        self.tickets: dict[str, RouteTicket] = {}
        self.preempted = 0
        self.kept_when_mended = 0
        self._arriving: Body | None = None

    def start(self, route: int, prompt_tokens: int, new_tokens: int) -> None:
        seq = len(self.answers) + 1
        claims = ticket(*ROUTES[route], session_id=f"s{seq}", admission_seq=seq)
        one = Generation(
            session_id=claims.session_id,
            epoch=(1, 0),
            prompt_ids=tuple(range(prompt_tokens)),
            max_new_tokens=new_tokens,
            end_ids=frozenset(),
            min_new_tokens=0,
            chunk_tokens=3,
            block_positions=BLOCK_POSITIONS,
        )
        self.answers[claims.session_id] = Answer(claims, one)
        self.head_of(self.answers[claims.session_id]).waiting.arrive(claims, self.now)

    def cancel(self, answer: Answer) -> None:
        answer.is_cancelled = True
        self._close(answer)

    def break_on(self, worker: SimWorker, session_id: str) -> None:
        """Let a Session fail in the engine of one Hop."""
        session = worker.sessions.find(session_id)
        if session is not None:
            worker.hops.fail(session, "engine_failed", "It broke.")

    def head_of(self, answer: Answer) -> SimWorker:
        return self.workers[answer.ticket.hops[0].worker_id]

    def send(self, sender: str, receiver: str, body: Body) -> None:
        is_bulk = isinstance(body, ActivationFrame) and bool(
            body.header.segments[0].flags & SEGMENT_PREFILL
        )
        if isinstance(body, ErrorBody) and body.code in ("kv_preempted", "kv_exhausted"):
            self._check_not_oldest(body.session_id)
            self.preempted += body.code == "kv_preempted"
        self.wires[Link(sender, receiver, is_bulk)].append(body)

    def happen(self, random: Random) -> bool:
        """Let one thing happen that can; False when nothing can."""
        links = [link for link, queue in self.wires.items() if queue]
        engines = [worker for worker in self.workers.values() if worker.engine]
        idle = ("waiting", "mending")
        waiting = [a for a in self.answers.values() if a.phase in idle and not a.is_over]
        kinds: list[Link | SimWorker | Answer] = [*links, *engines, *waiting]
        if not kinds:
            return False
        match random.choice(kinds):
            case Link() as link:
                self._deliver(link, self.wires[link].popleft())
            case SimWorker() as worker:
                worker.step()
            case Answer() as answer:
                self._try(answer, random)
        return True

    def _try(self, answer: Answer, random: Random) -> None:
        self.now += random.random()
        turn = self.head_of(answer).waiting.turn(answer.ticket.session_id, self.now)
        if answer.phase == "waiting" and not isinstance(turn, Go):
            return
        if answer.opening is not None:
            self._start_anew(answer, random)
        positions = answer.generation.next_reservation()
        assert positions is not None
        answer.opening, answer.phase = answer.generation.epoch, "opening"
        drawing = OpenBody(
            ticket=self._token(answer.ticket),
            max_positions=positions,
            sampling=GREEDY,
            history=History(
                answer_start=len(answer.generation.prompt_ids),
                answer_ids=tuple(answer.generation.chosen),
            ),
            rollback=answer.opening[1],
        )
        self._from_head(answer, answer.ticket.hops[-1], drawing)
        self._open(answer, positions)

    def _start_anew(self, answer: Answer, random: Random) -> None:
        """Take a fresh ticket, perhaps with another Route; or the old one, without a Tracker."""
        incarnation, rollback = answer.generation.epoch
        answer.left.update(
            {hop.worker_id: (hop, answer.generation.epoch) for hop in answer.ticket.hops}
        )
        if random.random() < 0.3:
            answer.generation.restart((incarnation, rollback + 1))
            return
        head = answer.ticket.hops[0].worker_id
        routes = [route for route in ROUTES if route[0].worker_id == head]
        old = answer.ticket
        answer.ticket = ticket(
            *random.choice(routes),
            session_id=old.session_id,
            admission_seq=old.admission_seq,
            incarnation=old.incarnation + 1,
        )
        answer.generation.restart((answer.ticket.incarnation, 0))

    def _open(self, answer: Answer, positions: int) -> None:
        assert answer.opening is not None
        token = self._token(answer.ticket)
        body = OpenBody(ticket=token, max_positions=positions, rollback=answer.opening[1])
        self._from_head(answer, answer.ticket.hops[0], body)

    def _token(self, claims: RouteTicket) -> str:
        token = f"{claims.session_id}/{claims.incarnation}"
        self.tickets[token] = claims
        return token

    def _from_head(self, answer: Answer, target: RouteHop, body: Body) -> None:
        self.send(answer.ticket.hops[0].worker_id, target.worker_id, body)

    def _deliver(self, link: Link, body: Body) -> None:
        worker = self.workers[link.receiver]
        self._arriving = body
        match body:
            case OpenBody(sampling=None):
                worker.admission.open(self.tickets[body.ticket], body)
            case OpenBody():
                worker.admission.arm(self.tickets[body.ticket], body)
            case ActivationFrame():
                worker.hops.run(WorkerId(link.sender), body)
            case ReplayBody():
                worker.hops.replay(WorkerId(link.sender), body)
            case CloseBody():
                worker.hops.close(body)
            case _:
                self._hear(body)

    def _hear(self, body: Body) -> None:
        match body:
            case OpenedBody():
                self._on_opened(self.answers[body.session_id], body)
            case ProgressBody():
                answer = self.answers[body.session_id]
                if answer.phase == "running":
                    self._feed(answer, list(answer.generation.on_progress(body)))
            case TokensBody():
                for token in body.tokens:
                    self._on_token(self.answers[token.session_id], token)
            case ErrorBody():
                self._on_error(self.answers[body.session_id], body)
            case _:
                raise AssertionError(body)

    def _on_opened(self, answer: Answer, body: OpenedBody) -> None:
        if answer.phase != "opening" or body.epoch != answer.opening:
            return
        answer.phase = "running"
        answer.generation.capacity = body.capacity
        self.head_of(answer).waiting.leave(answer.ticket.session_id)
        present = {hop.worker_id for hop in answer.ticket.hops}
        self._close_left(answer, present)
        answer.generation.on_opened(body.held, body.kept, body.credits)
        self.kept_when_mended += answer.opening > (1, 0) and any(body.held)
        self._feed(answer, list(answer.generation.due()))

    def _on_token(self, answer: Answer, token: ChosenToken) -> None:
        one = answer.generation
        if answer.is_cancelled or not one.on_token(token):
            return
        answer.is_hurt = answer.is_hurt and answer.phase != "running"
        if one.finished:
            self._close(answer)
        elif answer.phase == "running":
            positions = one.next_reservation()
            if positions is not None:
                self._open(answer, positions)
            self._feed(answer, [one.decode_segment()])

    def _on_error(self, answer: Answer, body: ErrorBody) -> None:
        is_stale = body.epoch is not None and body.epoch < (answer.opening or (0, 0))
        if answer.phase == "waiting" or is_stale:
            return
        if body.code in MENDABLE or (body.code == BAD_TICKET and answer.is_hurt):
            answer.phase, answer.is_hurt = "mending", True
            return
        waiting = self.head_of(answer).waiting
        self._close(answer)
        if not goes_on(body, answer.ticket, answer.generation, waiting, self.now):
            answer.fault = body.code

    def _feed(self, answer: Answer, due: list[Segment | ReplayBody]) -> None:
        for one in due:
            if isinstance(one, ReplayBody):
                self._from_head(answer, answer.ticket.hops[one.last_hop - 1], one)
                continue
            frame = ActivationFrame(ActivationsHeader((one,), 0, "float32"), b"")
            self._from_head(answer, answer.ticket.hops[0], frame)

    def _close(self, answer: Answer) -> None:
        self.head_of(answer).waiting.leave(answer.ticket.session_id)
        if answer.phase == "waiting":
            return
        was_whole = answer.phase != "mending" and not answer.left
        answer.phase = "waiting"
        body = CloseBody(session_id=answer.ticket.session_id, epoch=answer.generation.epoch)
        for one in answer.ticket.hops[:1] if was_whole else answer.ticket.hops:
            self._from_head(answer, one, body)
        self._close_left(answer, {hop.worker_id for hop in answer.ticket.hops})

    def _close_left(self, answer: Answer, present: set[str]) -> None:
        for worker_id, (target, epoch) in answer.left.items():
            if worker_id not in present:
                body = CloseBody(session_id=answer.ticket.session_id, epoch=epoch)
                self._from_head(answer, target, body)
        answer.left.clear()

    def _check_not_oldest(self, session_id: str) -> None:
        """Only for an older Session, or what is left of one, may a Session lack KV."""
        seq = self.answers[session_id].ticket.admission_seq
        older = [a for a in self.answers.values() if a.ticket.admission_seq < seq]
        assert any(not a.is_over or self.is_held(a) or self._is_on_its_way(a) for a in older)

    def _is_on_its_way(self, answer: Answer) -> bool:
        bodies = [self._arriving, *(body for queue in self.wires.values() for body in queue)]
        openings = [self.tickets[b.ticket] for b in bodies if isinstance(b, OpenBody)]
        return any(one.session_id == answer.ticket.session_id for one in openings)

    def is_held(self, answer: Answer) -> bool:
        """Whether any Hop still has something of it."""
        return any(w.sessions.find(answer.ticket.session_id) for w in self.workers.values())
