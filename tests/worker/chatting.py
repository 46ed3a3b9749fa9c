"""Chat with one Head Worker over HTTP, on a Route that answers from a list of tokens."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import aiohttp
import msgspec

from meshnet_common.edge.clock import ManualClock
from meshnet_common.edge.http import MAX_BODY_BYTES, new_application
from meshnet_common.edge.serving import listening
from meshnet_common.ids import WorkerId
from meshnet_common.openai.apis import APIS, CHAT, COUNTED_APIS
from meshnet_common.protocol.bodies import (
    SEGMENT_SAMPLE,
    ActivationFrame,
    Body,
    ChosenToken,
    CloseBody,
    ErrorBody,
    KvFigures,
    OpenBody,
    OpenedBody,
    ProgressBody,
    Segment,
    TokensBody,
)
from meshnet_common.protocol.messages import RouteHop
from meshnet_common.protocol.resume import MAX_RECORD_BYTES
from meshnet_common.protocol.sampling import Sampling, TokenLogprobs
from meshnet_common.protocol.tickets import TICKET_HEADER, RouteTicket, verify_ticket
from meshnet_worker.api import ERROR_TABLE
from meshnet_worker.chat import Chat, ChatRoom
from meshnet_worker.head import Heads
from meshnet_worker.head_driver import HeadRoom
from meshnet_worker.routes import Routes
from meshnet_worker.text.tokenizer import TextCodec
from meshnet_worker.tickets import TicketBook
from meshnet_worker.tracker_client import TrackerClient
from tests.common.builders import NOW, signing_key, ticket, token_of
from tests.worker.builders import RecordingRoom
from tests.worker.running import known_keys, no_fresh_route
from tests.worker.small_tracker import SmallTracker, small_tracker
from tests.worker.waiting import SECONDS, Changes, start_task

Serve = Callable[..., AbstractAsyncContextManager["Client"]]
"""Serves chat on a Route that answers with these tokens."""

CONTEXT_TOKENS = 512


class Route:
    """A Route that answers with tokens from a list, and then fails if it was told to."""

    def __init__(self, tokens: list[int], wait_seconds: float = 0.0) -> None:
        self.tokens = tokens
        self.others: list[list[int]] = []
        """What the choices after the first one say."""
        self.likely: dict[int, TokenLogprobs] = {}
        self.fails_with: str | None = None
        self.refuses_with: str | None = None
        self.figures: KvFigures | None = None
        # What cannot be mended at once is given up.
        self.heads = Heads(
            HeadRoom(
                self.dispatch,
                no_fresh_route,
                ManualClock(NOW),
                wait_seconds,
                start_task,
                let_go=self.let_go,
                mend_seconds=0.0,
            )
        )
        self.sent: list[Body] = []
        self.let_go_of: list[str] = []
        self.changes = Changes()

    def let_go(self, session_id: str) -> None:
        self.let_go_of.append(session_id)
        self.changes.tell()

    def dispatch(self, _hop: RouteHop, body: Body) -> None:
        self.sent.append(body)
        self.changes.tell()
        asyncio.get_running_loop().call_soon(self.answer, body)

    def answer(self, body: Body) -> None:
        match body:
            case OpenBody(sampling=None) if self.refuses_with is not None:
                self.fail(self.refuses_with)
            case OpenBody(sampling=None):
                claims = _claims(body)
                epoch = (claims.incarnation, body.rollback)
                session_id = claims.of_choice(body.choice).session_id
                opened = OpenedBody(session_id=session_id, epoch=epoch, held=(0,), credits=8)
                self.heads.on_opened(opened)
            case ActivationFrame():
                self.run(body.header.segments[0])
            case _:
                pass

    def run(self, segment: Segment) -> None:
        end, session_id, epoch = segment.start + segment.tokens, segment.session_id, segment.epoch
        _, _, choice = session_id.partition(".")
        tokens = self.others[int(choice) - 1] if choice else self.tokens
        if not segment.flags & SEGMENT_SAMPLE:
            body = ProgressBody(session_id=session_id, epoch=epoch, position=end)
            self.heads.on_progress(body)
        elif tokens:
            token_id = tokens.pop(0)
            token = ChosenToken(session_id, epoch, end, token_id, self.likely.get(token_id))
            self.heads.on_tokens(TokensBody(tokens=(token,)))
        elif self.fails_with is not None:
            self.fail(self.fails_with)

    def fail(self, code: str, worker_id: str = "w1") -> None:
        body = ErrorBody(
            session_id="s1", code=code, message="Because.", worker_id=worker_id, kv=self.figures
        )
        self.heads.on_error(body)

    @property
    def is_closed(self) -> bool:
        return bool(self.closed)

    @property
    def closed(self) -> set[str]:
        return {body.session_id for body in self.sent if isinstance(body, CloseBody)}

    @property
    def sampling(self) -> Sampling | None:
        return next(iter(self.samplings), None)

    @property
    def samplings(self) -> list[Sampling]:
        """Of each choice, in their order."""
        opened = [body for body in self.sent if isinstance(body, OpenBody) and body.sampling]
        opened.sort(key=lambda body: body.choice)
        return [body.sampling for body in opened if body.sampling]

    @property
    def prompt_ids(self) -> list[int]:
        frames = [body for body in self.sent if isinstance(body, ActivationFrame)]
        return list(frames[0].header.segments[0].token_ids or ())


def _claims(body: OpenBody) -> RouteTicket:
    return verify_ticket(body.ticket, signing_key().public_key())


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def code(self) -> str | None:
        code: str | None = self.json["error"]["code"]
        return code

    @property
    def text(self) -> str:
        text: str = self.json["choices"][0]["message"]["content"]
        return text

    @property
    def finish_reason(self) -> str:
        reason: str = self.json["choices"][0]["finish_reason"]
        return reason

    @property
    def choices(self) -> list[tuple[str, str]]:
        """Text and reason to end of each choice, streamed or whole."""
        if not self.headers["Content-Type"].startswith("text/event-stream"):
            told = self.json["choices"]
            return [(one["message"]["content"], one["finish_reason"]) for one in told]
        choices: dict[int, tuple[str, str]] = {}
        for one in self.streamed_choices:
            text, reason = choices.get(one["index"], ("", ""))
            text += one["delta"].get("content") or ""
            choices[one["index"]] = text, one["finish_reason"] or reason
        return [choices[index] for index in sorted(choices)]

    @property
    def logprobs(self) -> list[Any]:
        """All tokens that are told, streamed or whole."""
        is_stream = self.headers["Content-Type"].startswith("text/event-stream")
        choices = self.streamed_choices if is_stream else self.json["choices"]
        told = (choice["logprobs"] or {"content": []} for choice in choices)
        return [token for one in told for token in one["content"]]

    @property
    def streamed_choices(self) -> list[Any]:
        return [choice for chunk in self.chunks for choice in chunk.get("choices", ())]

    @property
    def events(self) -> list[str]:
        """Lines of an event stream that are not empty."""
        return [line for line in self.body.decode().splitlines() if line]

    @property
    def chunks(self) -> list[Any]:
        data = [line.removeprefix("data: ") for line in self.events if line.startswith("data: {")]
        return [msgspec.json.decode(line) for line in data]

    @property
    def streamed_text(self) -> str:
        choices = [chunk["choices"][0] for chunk in self.chunks if chunk.get("choices")]
        return "".join(choice["delta"].get("content") or "" for choice in choices)


@dataclass
class Client:
    """A client of one Head Worker, with a ticket as the Tracker sends it along."""

    root: str
    route: Route
    recording: RecordingRoom
    codecs: dict[tuple[str, str], TextCodec]
    tracker: SmallTracker
    head: Chat

    async def chat(self, content: str = "w5 w6 w7", **fields: Any) -> Answer:
        headers = fields.pop("headers", {TICKET_HEADER: token_of(ticket())})
        messages = [{"role": "user", "content": content}]
        return await self.post(
            msgspec.json.encode({"model": "tiny", "messages": messages, **fields}), headers
        )

    @property
    def url(self) -> str:
        """Where it chats."""
        return f"{self.root}{CHAT.url_path}"

    async def ask(self, url_path: str, **fields: Any) -> Answer:
        """Ask by any API."""
        body = msgspec.json.encode({"model": "tiny", **fields})
        return await self.post(body, {TICKET_HEADER: token_of(ticket())}, url_path)

    async def post(
        self, body: bytes, headers: dict[str, str], url_path: str = CHAT.url_path
    ) -> Answer:
        headers = {"Content-Type": "application/json", **headers}
        async with (
            asyncio.timeout(SECONDS),
            aiohttp.ClientSession() as session,
            session.post(f"{self.root}{url_path}", data=BytesIO(body), headers=headers) as response,
        ):
            return Answer(response.status, dict(response.headers), await response.read())

    async def until_nobody_waits(self) -> None:
        """Talk to the Worker until its queue is empty; raises TimeoutError."""
        async with asyncio.timeout(SECONDS):
            while self.route.heads.waiting:
                assert (await self.post(b"{", {})).status == 400


@asynccontextmanager
async def served_chat(
    codec: TextCodec, *tokens: int, wait_seconds: float = 0.0
) -> AsyncIterator[Client]:
    """Serve chat as the daemon does, with a small Tracker beside it."""
    route, recording = Route(list(tokens), wait_seconds), RecordingRoom("w0")
    codecs = {("tiny", "float32"): codec}
    async with small_tracker() as tracker:
        tracker_client = TrackerClient(tracker.url)
        chat = Chat(
            ChatRoom(
                shards=recording.shards,
                codecs=codecs,
                heads=route.heads,
                routes=Routes(
                    WorkerId("w0"), tracker_client, TicketBook(known_keys), ManualClock(NOW)
                ),
                clock=ManualClock(NOW),
                kv=recording.kv,
                chunk_tokens=128,
            )
        )
        app = new_application(ERROR_TABLE, max_body_bytes=MAX_BODY_BYTES + MAX_RECORD_BYTES)
        for api in APIS:
            app.router.add_post(api.url_path, chat.answering(api))
        for api in COUNTED_APIS:
            app.router.add_post(api.counting_paths[0], chat.counting(api))
        async with listening(app, "127.0.0.1", 0) as url:
            yield Client(url, route, recording, codecs, tracker, chat)
        await tracker_client.close()
