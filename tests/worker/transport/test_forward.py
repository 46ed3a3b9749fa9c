import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO

import aiohttp
import msgspec
import pytest
import torch

from meshnet_common.protocol.bodies import (
    SEGMENT_FILL,
    SEGMENT_SAMPLE,
    ActivationFrame,
    ActivationsHeader,
    Body,
    CloseBody,
    OpenBody,
    OpenedBody,
    PingBody,
    ProgressBody,
    Segment,
    TokensBody,
    from_frame,
    to_frame,
)
from meshnet_common.protocol.frames import decode_frame, encode_frame
from meshnet_common.protocol.tickets import RouteTicket
from meshnet_worker.transport.forward import CONTENT_TYPE
from meshnet_worker.transport.links import MAX_MESSAGE_BYTES
from tests.common.builders import NOW, hop, preset, segment, ticket, token_of
from tests.worker.builders import GREEDY, RecordingRoom
from tests.worker.engines import SharedEngine
from tests.worker.models import HIDDEN_SIZE, greedy_answer, prompt_of
from tests.worker.running import running_workers
from tests.worker.waiting import SECONDS

pytestmark = pytest.mark.asyncio(loop_scope="session")

WHOLE = ticket(hop("w0", 0, 4))
FIRST_HALF = ticket(hop("w0", 0, 2), layer_count=4, session_id="first")
SECOND_HALF = ticket(hop("w9", 0, 2), hop("w0", 2, 4), session_id="second")


@dataclass
class Answer:
    status: int
    body: bytes

    @property
    def frame(self) -> Body:
        assert self.status == 200, self.body
        return from_frame(decode_frame(self.body))

    @property
    def code(self) -> str | None:
        error: dict[str, str | None] = msgspec.json.decode(self.body)["error"]
        return error["code"]


class Client:
    """Whoever posts frames to one Worker, such as curl."""

    def __init__(self, session: aiohttp.ClientSession, url: str, recording: RecordingRoom) -> None:
        self._session = session
        self._url = url
        self.recording = recording

    async def post(self, data: bytes, content_type: str = CONTENT_TYPE) -> Answer:
        headers = {"Content-Type": content_type}
        async with (
            asyncio.timeout(SECONDS),
            self._session.post(
                f"{self._url}/forward", data=BytesIO(data), headers=headers
            ) as response,
        ):
            return Answer(response.status, await response.read())

    async def send(self, body: Body) -> Answer:
        return await self.post(encode_frame(to_frame(body)))

    async def open(self, claims: RouteTicket = WHOLE, max_positions: int = 64) -> Answer:
        token = token_of(claims)
        body = OpenBody(ticket=token, max_positions=max_positions, sampling=GREEDY)
        return await self.send(body)

    async def run(self, *segments: Segment, hidden: bytes = b"") -> Answer:
        size = HIDDEN_SIZE if hidden else 0
        return await self.send(
            ActivationFrame(ActivationsHeader(segments, size, "float32"), hidden)
        )


def prompt_segment(tokens: int, session_id: str = "s1", flags: int = SEGMENT_SAMPLE) -> Segment:
    return segment(0, tokens, session_id, flags=flags, token_ids=prompt_of(tokens))


@asynccontextmanager
async def served(engine: SharedEngine, **facts: int) -> AsyncIterator[Client]:
    """A Worker with every Layer of the small Llama on a real engine."""
    recording = RecordingRoom(
        "w0", kv_bytes=facts.get("kv_bytes", 100_000), model=preset(hidden_size=HIDDEN_SIZE)
    )
    recording.sessions._next_engine_session = next(engine.numbers)
    async with running_workers(recording) as (worker,), aiohttp.ClientSession() as session:
        worker.play = engine.engine.send
        engine.on_stepped = worker.hops.on_stepped
        engine.on_failed = worker.hops.on_session_failed
        yield Client(session, worker.url, recording)


async def test_a_prompt_is_answered_with_the_token_that_follows(
    shared_engine: SharedEngine,
) -> None:
    async with served(shared_engine) as client:
        opened = (await client.open()).frame
        assert isinstance(opened, OpenedBody)
        answer: list[int] = []
        for run in (prompt_segment(9), None, None):
            fed = run or segment(8 + len(answer), flags=SEGMENT_SAMPLE, token_ids=answer[-1:])
            tokens = (await client.run(fed)).frame
            assert isinstance(tokens, TokensBody)
            answer.append(tokens.tokens[0].token_id)
        assert answer == greedy_answer("llama", 9, 3)


async def test_hidden_states_go_out_and_come_in(shared_engine: SharedEngine) -> None:
    async with served(shared_engine) as client:
        for claims in (FIRST_HALF, SECOND_HALF):
            assert isinstance((await client.open(claims)).frame, OpenedBody)
        halfway = (await client.run(prompt_segment(20, "first"))).frame
        assert isinstance(halfway, ActivationFrame)
        assert halfway.header.hidden_size == HIDDEN_SIZE
        run = segment(0, 20, "second", flags=SEGMENT_SAMPLE)
        tokens = (await client.run(run, hidden=halfway.hidden)).frame
        assert isinstance(tokens, TokensBody)
        assert tokens.tokens[0].token_id == greedy_answer("llama", 20, 1)[0]


async def test_a_chunk_without_a_token_is_answered_with_progress(
    shared_engine: SharedEngine,
) -> None:
    async with served(shared_engine) as client:
        await client.open()
        progress = (await client.run(prompt_segment(9, flags=0))).frame
        assert progress == ProgressBody(session_id="s1", epoch=(1, 0), position=9)


async def test_a_fill_is_answered_with_progress_too(shared_engine: SharedEngine) -> None:
    async with served(shared_engine) as client:
        await client.open(FIRST_HALF)
        answer = await client.run(prompt_segment(3, "first", flags=SEGMENT_FILL))
        assert isinstance(answer.frame, ProgressBody)


async def test_an_opening_may_be_repeated_for_more_positions(shared_engine: SharedEngine) -> None:
    async with served(shared_engine) as client:
        for positions in (8, 16):
            assert isinstance((await client.open(max_positions=positions)).frame, OpenedBody)
        assert isinstance((await client.run(prompt_segment(12))).frame, TokensBody)


async def test_a_closed_session_is_unknown_and_frees_its_kv(shared_engine: SharedEngine) -> None:
    async with served(shared_engine) as client:
        await client.open()
        body = CloseBody(session_id="s1", epoch=(1, 0))
        assert (await client.send(body)).frame == body
        assert client.recording.kv.free_bytes == client.recording.kv_bytes
        assert (await client.run(prompt_segment(3))).status == 404


async def test_an_unknown_session_is_a_404(shared_engine: SharedEngine) -> None:
    async with served(shared_engine) as client:
        answer = await client.run(prompt_segment(3))
        assert answer.status == 404
        assert b"'s1' was not opened" in answer.body


@pytest.mark.parametrize("content_type", ["application/json", "application/octet-stream"])
async def test_another_media_type_is_a_415(content_type: str, shared_engine: SharedEngine) -> None:
    async with served(shared_engine) as client:
        assert (await client.post(b"{}", content_type)).status == 415


GOOD = encode_frame(to_frame(PingBody(nonce=1)))


@pytest.mark.parametrize(
    "junk",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"junk" * 10, id="junk"),
        pytest.param(GOOD[:-1], id="half a frame"),
        pytest.param(GOOD + b"\0", id="more than a frame"),
        pytest.param(GOOD, id="a kind that is not forwarded"),
    ],
)
async def test_what_is_no_frame_to_run_is_a_400(junk: bytes, shared_engine: SharedEngine) -> None:
    async with served(shared_engine) as client:
        assert (await client.post(junk)).status == 400


async def test_a_frame_may_be_larger_than_a_json_body(shared_engine: SharedEngine) -> None:
    async with served(shared_engine) as client:
        assert (await client.post(bytes(5 << 20))).status == 400


async def test_a_body_over_the_largest_frame_is_a_413(shared_engine: SharedEngine) -> None:
    async with served(shared_engine) as client:
        assert (await client.post(bytes(MAX_MESSAGE_BYTES + 1))).status == 413


async def test_a_session_runs_one_forwarded_segment_at_a_time(shared_engine: SharedEngine) -> None:
    async with served(shared_engine) as client, asyncio.TaskGroup() as tasks:
        await client.open()
        first = tasks.create_task(client.run(prompt_segment(3)))
        second = tasks.create_task(client.run(prompt_segment(3)))
    assert sorted((first.result().status, second.result().status)) == [200, 400]


async def test_a_frame_of_several_segments_is_a_400(shared_engine: SharedEngine) -> None:
    async with served(shared_engine) as client:
        await client.open()
        assert (await client.run(prompt_segment(3), prompt_segment(3))).status == 400


async def test_a_segment_that_was_run_before_is_a_400(shared_engine: SharedEngine) -> None:
    async with served(shared_engine) as client:
        await client.open()
        await client.run(prompt_segment(3))
        assert (await client.run(prompt_segment(3))).status == 400
        assert len(client.recording.sessions) == 1


async def test_a_segment_that_leaves_a_gap_is_a_400_and_closes_its_session(
    shared_engine: SharedEngine,
) -> None:
    async with served(shared_engine) as client:
        await client.open()
        answer = await client.run(segment(5, token_ids=[1]))
        assert (answer.status, answer.code) == (400, "bad_segment")
        assert len(client.recording.sessions) == 0


REFUSALS = [
    pytest.param(ticket(hop("w9", 0, 4)), 403, "bad_ticket", id="another Worker's ticket"),
    pytest.param(
        ticket(hop("w0", 0, 4), expires_at=NOW - 1), 403, "bad_ticket", id="an expired ticket"
    ),
    pytest.param(ticket(hop("w0", 0, 9)), 503, "not_serving", id="Layers that are not here"),
]


@pytest.mark.parametrize(("claims", "status", "code"), REFUSALS)
async def test_a_refused_opening_says_why(
    claims: RouteTicket, status: int, code: str, shared_engine: SharedEngine
) -> None:
    async with served(shared_engine) as client:
        answer = await client.open(claims)
        assert (answer.status, answer.code) == (status, code)


async def test_a_strangers_ticket_is_a_403(shared_engine: SharedEngine) -> None:
    async with served(shared_engine) as client:
        body = OpenBody(ticket=token_of(WHOLE, seed=1), max_positions=8)
        assert (await client.send(body)).status == 403


async def test_an_opening_without_room_is_a_503(shared_engine: SharedEngine) -> None:
    async with served(shared_engine, kv_bytes=10) as client:
        answer = await client.open()
        assert (answer.status, answer.code) == (503, "kv_capacity")


async def test_a_session_that_fails_in_the_engine_is_a_502(shared_engine: SharedEngine) -> None:
    not_numbers = torch.full((2, HIDDEN_SIZE), float("nan")).numpy().tobytes()
    async with served(shared_engine) as client:
        await client.open(SECOND_HALF)
        run = segment(0, 2, "second", flags=SEGMENT_SAMPLE)
        answer = await client.run(run, hidden=not_numbers)
        assert (answer.status, answer.code) == (502, "engine_failed")
        assert (await client.open()).status == 200
