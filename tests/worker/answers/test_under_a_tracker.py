"""Real Head Workers under a real Tracker; only the Hops are played, with tokens known before."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from meshnet_common.edge.http import new_application
from meshnet_common.edge.serving import listening
from meshnet_common.ids import WorkerId
from meshnet_common.openai.apis import APIS, COMPLETIONS, RESPONSES
from meshnet_common.protocol.bodies import (
    SEGMENT_SAMPLE,
    ActivationFrame,
    Body,
    ChosenToken,
    OpenBody,
    OpenedBody,
    ProgressBody,
    Segment,
    TokensBody,
)
from meshnet_common.protocol.messages import RouteHop
from meshnet_tracker.planning.snapshot import VariantKey
from meshnet_tracker.records import PresetRecord
from meshnet_worker.api import ERROR_TABLE
from meshnet_worker.chat import Chat, ChatRoom
from meshnet_worker.head import Heads
from meshnet_worker.head_driver import HeadRoom
from meshnet_worker.routes import Routes
from meshnet_worker.text.tokenizer import TextCodec
from meshnet_worker.tickets import TicketBook
from meshnet_worker.tracker_client import TrackerClient
from tests.common.builders import preset
from tests.tracker.builders import NOW, heartbeat, shard
from tests.tracker.running import Reply, RunningTracker, running_tracker, until
from tests.worker.builders import RecordingRoom
from tests.worker.waiting import start_task

WHERE = "/v1/chat/completions"
WHOLE_MODEL = shard(0, 4, model=VariantKey("tiny", "float32"))
TOKENS = 20
CHAT = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "w5 w6 w7"}],
    "max_tokens": TOKENS,
}
STREAMED = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
PROMPT = "w5 w6 w7"
ASKED: dict[str, dict[str, Any]] = {
    WHERE: CHAT,
    COMPLETIONS.url_path: {
        "model": "tiny",
        "prompt": PROMPT,
        "max_tokens": TOKENS,
        "logprobs": 1,
    },
    RESPONSES.url_path: {"model": "tiny", "input": PROMPT, "max_output_tokens": TOKENS},
}


@dataclass
class PlayedRoute:
    """Hops that answer each position with the same token, until it is enough."""

    most_tokens: int = 1000
    given: int = 0
    opened: list[OpenBody] = field(default_factory=list)
    heads: Heads = field(init=False)

    def dispatch(self, _hop: RouteHop, body: Body) -> None:
        asyncio.get_running_loop().call_soon(self._answer, body)

    def _answer(self, body: Body) -> None:
        match body:
            case OpenBody(sampling=None):
                self.opened.append(body)
                self._open()
            case ActivationFrame():
                self._run(body.header.segments[0])
            case _:
                pass

    def _open(self) -> None:
        for session in tuple(self.heads._sessions.values()):
            if session.opening is not None:
                self.heads.on_opened(
                    OpenedBody(
                        session_id=session.generation.session_id,
                        epoch=session.opening,
                        held=(0,),
                        credits=8,
                    )
                )

    def _run(self, run: Segment) -> None:
        end = run.start + run.tokens
        if not run.flags & SEGMENT_SAMPLE:
            body = ProgressBody(session_id=run.session_id, epoch=run.epoch, position=end)
            self.heads.on_progress(body)
        elif self.given < self.most_tokens:
            self.given += 1
            token = ChosenToken(run.session_id, run.epoch, end, end % 100 + 1)
            self.heads.on_tokens(TokensBody(tokens=(token,)))


@dataclass(frozen=True)
class RealHead:
    chat: Chat
    route: PlayedRoute

    @property
    def is_idle(self) -> bool:
        return len(self.route.heads) == 0


@asynccontextmanager
async def real_head(
    tracker: RunningTracker, worker_id: str, codec: TextCodec, sessions: int = 0
) -> AsyncIterator[RealHead]:
    """A Head Worker that is chosen the earlier the fewer Sessions it claims to have."""
    client, recording, route = TrackerClient(tracker.url), RecordingRoom(worker_id), PlayedRoute()
    routes = Routes(WorkerId(worker_id), client, TicketBook(client.keys), tracker.clock)
    room = HeadRoom(route.dispatch, routes.renewed, tracker.clock, 0.0, start_task)
    route.heads = Heads(room)
    chat = Chat(
        ChatRoom(
            shards=recording.shards,
            codecs={("tiny", "float32"): codec},
            heads=route.heads,
            routes=routes,
            clock=tracker.clock,
            kv=recording.kv,
            chunk_tokens=128,
        )
    )
    app = new_application(ERROR_TABLE)
    for api in APIS:
        app.router.add_post(api.url_path, chat.answering(api))
    try:
        async with listening(app, "127.0.0.1", 0) as url:
            worker = await tracker.serve(worker_id, url, WHOLE_MODEL)
            busy = heartbeat(WHOLE_MODEL, sessions=sessions)
            await tracker.post(f"{worker.where}/heartbeat", busy, worker.token)
            yield RealHead(chat, route)
    finally:
        await client.close()


@pytest.fixture
async def tracker(tmp_path: Path) -> AsyncIterator[RunningTracker]:
    async with running_tracker(tmp_path / "tracker.sqlite3") as running:
        await running.store.add_preset(PresetRecord(preset(), (), NOW), NOW)
        yield running


def nameless(reply: Reply) -> bytes:
    """An answer without what tells it from the next one."""
    assert reply.status == 200, reply.body
    return re.sub(rb"(chatcmpl-|cmpl-|resp_|msg_)[0-9a-f]+", rb"\1", reply.body)


async def interrupted(
    tracker: RunningTracker, head: RealHead, chat: dict[str, Any], fault: str, where: str = WHERE
) -> Reply:
    """Ask, and let the Head Worker fail when it has given seven tokens."""
    head.route.most_tokens = head.route.given + 7
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        reply = tasks.create_task(tracker.post(where, chat))
        await until(lambda: head.route.given == head.route.most_tokens)
        if fault == "leaves":
            head.chat.move_away()
        for telling in tuple(head.chat._told.values()) if fault == "breaks off" else ():
            assert telling._request.transport is not None
            telling._request.transport.abort()
        await until(lambda: head.is_idle)
        head.route.most_tokens += 1000
    return reply.result()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("where", ASKED)
@pytest.mark.parametrize("fault", ["leaves", "breaks off"])
async def test_an_answer_goes_on_at_another_head_worker(
    tracker: RunningTracker, codec: TextCodec, where: str, stream: bool, fault: str
) -> None:
    chat = {**ASKED[where], "stream": stream}
    async with (
        real_head(tracker, "w0", codec) as first,
        real_head(tracker, "w1", codec, sessions=9) as second,
    ):
        whole = await tracker.post(where, chat)
        reply = await interrupted(tracker, first, chat, fault, where)
        assert nameless(reply) == nameless(whole)
        # What was on its way when the stream broke off is drawn once more.
        unread = range(8) if fault == "breaks off" else (0,)
        assert first.route.given + second.route.given - 2 * TOKENS in unread
        assert (first.is_idle, second.is_idle) == (True, True)


async def test_an_answer_goes_on_at_the_same_head_worker_when_only_its_stream_was_lost(
    tracker: RunningTracker, codec: TextCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshnet_tracker.probing._is_well", _always)
    async with real_head(tracker, "w0", codec) as head:
        whole = await tracker.post(WHERE, STREAMED)
        reply = await interrupted(tracker, head, STREAMED, "breaks off")
        assert nameless(reply) == nameless(whole)
        assert head.is_idle


@pytest.mark.parametrize("logprobs", [True, False])
@pytest.mark.parametrize("stream", [True, False])
async def test_all_choices_of_an_answer_go_on_at_another_head_worker(
    tracker: RunningTracker, codec: TextCodec, stream: bool, logprobs: bool
) -> None:
    chat = {**(STREAMED if stream else CHAT), "n": 3, "logprobs": logprobs}
    async with (
        real_head(tracker, "w0", codec) as first,
        real_head(tracker, "w1", codec, sessions=9) as second,
    ):
        whole = await tracker.post(WHERE, chat)
        for fault in ("leaves", "breaks off"):
            assert joined(await interrupted(tracker, first, chat, fault)) == joined(whole)
            assert (first.is_idle, second.is_idle) == (True, True)


def joined(reply: Reply) -> dict[int, tuple[str, list[str], str]]:
    """Text, tokens and reason to end of each choice, whatever the turn in which they came."""
    assert reply.status == 200, reply.body
    lines = [line for line in reply.body.splitlines() if line.startswith(b"data: {")]
    bodies = [msgspec.json.decode(line.removeprefix(b"data: ")) for line in lines]
    choices: dict[int, tuple[str, list[str], str]] = {}
    for told in (one for body in bodies or [reply.json] for one in body["choices"]):
        text, tokens, reason = choices.get(told["index"], ("", [], ""))
        assert not reason
        text += told.get("delta", told.get("message"))["content"] if _has_text(told) else ""
        logprobs = told["logprobs"] or {"content": []}
        tokens = [*tokens, *(token["token"] for token in logprobs["content"])]
        choices[told["index"]] = text, tokens, told["finish_reason"] or ""
    assert all(not tokens or "".join(tokens) == text for text, tokens, _ in choices.values())
    return choices


def _has_text(told: dict[str, Any]) -> bool:
    return "content" in (told.get("delta") or told.get("message") or {})


async def _always(_place: object) -> bool:
    return True
