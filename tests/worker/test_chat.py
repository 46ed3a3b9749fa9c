from typing import Any

import aiohttp
import pytest

from meshnet_common.edge.http import MAX_BODY_BYTES
from meshnet_common.openai.apis import CHAT
from meshnet_common.protocol.bodies import KvFigures
from meshnet_common.protocol.resume import TOKEN_IDS_HEADER
from meshnet_common.protocol.sampling import Sampling
from meshnet_common.protocol.tickets import TICKET_HEADER
from tests.common.builders import NOW, hop, hops, ticket, token_of
from tests.worker.chatting import CONTEXT_TOKENS, Serve
from tests.worker.models import END_ID
from tests.worker.waiting import ending_tasks


async def test_an_answer_is_the_text_of_its_tokens(serve: Serve) -> None:
    async with serve(1, 2, 3) as client:
        answer = await client.chat(max_tokens=3)
        assert (answer.status, answer.text, answer.finish_reason) == (200, "w1 w2 w3", "length")
        assert answer.json["usage"] == {
            "prompt_tokens": 3,
            "completion_tokens": 3,
            "total_tokens": 6,
        } | {k: v for k, v in answer.json["usage"].items() if k.endswith("_details")}
        assert answer.json["model"] == "tiny"
        assert client.route.prompt_ids == [5, 6, 7]
        assert client.route.is_closed


async def test_the_models_own_end_is_no_text(serve: Serve) -> None:
    async with serve(1, 2, END_ID) as client:
        answer = await client.chat()
        assert (answer.text, answer.finish_reason) == ("w1 w2", "stop")
        assert answer.json["usage"]["completion_tokens"] == 3


async def test_an_end_token_may_be_ignored(serve: Serve) -> None:
    async with serve(1, END_ID, 2) as client:
        answer = await client.chat(max_tokens=3, ignore_eos=True)
        assert answer.finish_reason == "length"
        assert answer.json["usage"]["completion_tokens"] == 3


async def test_a_stop_string_ends_the_answer_before_it(serve: Serve) -> None:
    async with serve(1, 2, 3, 4, 5) as client:
        answer = await client.chat(stop=[" w3"])
        assert (answer.text, answer.finish_reason) == ("w1 w2", "stop")
        assert client.route.is_closed


async def test_a_stream_says_the_same_in_pieces(serve: Serve) -> None:
    async with serve(1, 2, 3) as client:
        answer = await client.chat(max_tokens=3, stream=True)
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        assert answer.streamed_text == "w1 w2 w3"
        assert answer.chunks[0]["choices"][0]["delta"]["role"] == "assistant"
        assert answer.chunks[-1]["choices"][0]["finish_reason"] == "length"
        assert answer.events[-1] == "data: [DONE]"
        assert len({chunk["id"] for chunk in answer.chunks}) == 1
        assert TOKEN_IDS_HEADER not in answer.body.decode()


async def test_a_stream_ends_with_usage_when_asked(serve: Serve) -> None:
    async with serve(1, 2) as client:
        options = {"include_usage": True}
        answer = await client.chat(max_tokens=2, stream=True, stream_options=options)
        assert answer.chunks[-1]["usage"]["total_tokens"] == 5


async def test_token_ids_come_before_the_text_that_they_explain(serve: Serve) -> None:
    async with serve(11, 12) as client:
        headers = {TICKET_HEADER: token_of(ticket()), TOKEN_IDS_HEADER: "1"}
        answer = await client.chat(max_tokens=2, stream=True, headers=headers)
        events = answer.events
        places = [i for i, line in enumerate(events) if line.startswith(": token-ids")]
        assert [events[place] for place in places] == [": token-ids 11", ": token-ids 12"]
        assert '"content":"w11"' in events[places[0] + 1]


@pytest.mark.parametrize(("fields", "seed"), [({"seed": 123}, 123), ({}, ticket().seed)])
async def test_the_seed_is_the_clients_or_the_tickets(
    fields: dict[str, Any], seed: int, serve: Serve
) -> None:
    async with serve(1) as client:
        await client.chat(max_tokens=1, temperature=0.7, top_p=0.5, **fields)
        assert client.route.sampling == Sampling(temperature=0.7, top_p=0.5, seed=seed)


async def test_a_prompt_that_leaves_no_room_is_a_400_with_both_numbers(serve: Serve) -> None:
    async with serve() as client:
        answer = await client.chat("w1 " * CONTEXT_TOKENS)
        assert (answer.status, answer.code) == (400, "context_length_exceeded")
        assert answer.json["error"]["n_prompt_tokens"] == CONTEXT_TOKENS
        assert client.route.sent == []


async def test_an_answer_never_outgrows_the_context(serve: Serve) -> None:
    async with serve(*[1] * 50) as client:
        answer = await client.chat("w1 " * (CONTEXT_TOKENS - 2), max_tokens=50)
        assert answer.json["usage"]["total_tokens"] == CONTEXT_TOKENS


async def test_without_a_ticket_the_tracker_is_asked_with_the_clients_key(serve: Serve) -> None:
    async with serve(1) as client:
        client.tracker.ticket = token_of(ticket())
        answer = await client.chat(max_tokens=1, headers={"Authorization": "Bearer sk-1"})
        assert answer.text == "w1"
        assert client.tracker.routes == [("tiny", "w0", "Bearer sk-1")]


BAD_TICKETS = {
    "junk": "junk",
    "bytes that are no text": "a.b\udcff.c",
    "a stranger's": token_of(ticket(), seed=1),
    "an expired one": token_of(ticket(expires_at=NOW - 1)),
    "another Head Worker's": token_of(ticket(hop("w9", 0, 2), *hops(2, 2)[1:])),
}


@pytest.mark.parametrize("token", BAD_TICKETS.values(), ids=BAD_TICKETS)
async def test_a_ticket_that_is_not_valid_here_is_a_403(token: str, serve: Serve) -> None:
    async with serve(1) as client:
        answer = await client.chat(headers={TICKET_HEADER: token})
        assert answer.status == 403
        assert client.route.sent == []


async def test_layers_that_are_not_here_are_a_503(serve: Serve) -> None:
    async with serve(1) as client:
        for shard in client.recording.shards:
            shard.ready = None
        answer = await client.chat()
        assert (answer.status, answer.code) == (503, "model_unavailable")


async def test_a_model_whose_text_is_still_loading_is_a_503(serve: Serve) -> None:
    async with serve(1) as client:
        client.codecs.clear()
        assert (await client.chat()).status == 503


@pytest.mark.parametrize(
    ("code", "status"),
    [("kv_exhausted", 503), ("not_serving", 503), ("peer_lost", 503), ("bad_ticket", 502)],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_route_that_fails_before_the_first_token_is_an_error(
    stream: bool, code: str, status: int, serve: Serve
) -> None:
    async with serve() as client:
        client.route.refuses_with = code
        answer = await client.chat(stream=stream)
        assert answer.status == status
        assert ("Retry-After" in answer.headers) == (status == 503)
        assert client.route.is_closed


async def test_a_route_that_fails_in_the_middle_ends_the_stream_with_an_error(
    serve: Serve,
) -> None:
    async with serve(1, 2) as client:
        client.route.fails_with = "peer_lost"
        answer = await client.chat(stream=True)
        assert answer.status == 200
        assert answer.streamed_text == "w1 w2"
        assert any("worker_lost" in line for line in answer.events)
        assert '"finish_reason":"length"' not in answer.body.decode()
        assert client.route.is_closed


async def test_a_route_that_fails_in_the_middle_of_a_whole_answer_is_an_error(
    serve: Serve,
) -> None:
    async with serve(1, 2) as client:
        client.route.fails_with = "peer_lost"
        answer = await client.chat()
        assert (answer.status, answer.code) == (503, "model_unavailable")


async def test_a_prompt_that_no_memory_holds_is_a_400_with_the_numbers(serve: Serve) -> None:
    async with serve() as client:
        client.route.refuses_with = "kv_capacity"
        client.route.figures = KvFigures(needed=2, free=1, total=1, capacity=2)
        answer = await client.chat("w1 w2 w3")
        assert (answer.status, answer.code) == (400, "context_length_exceeded")
        error = answer.json["error"]
        assert (error["n_prompt_tokens"], error["n_ctx"]) == (3, 2)
        assert "2 KV blocks are needed, 1 of 1 are free" in error["message"]


async def test_who_waits_too_long_gets_a_503_with_the_reason(serve: Serve) -> None:
    async with serve() as client:
        client.route.refuses_with = "kv_exhausted"
        answer = await client.chat()
        assert (answer.status, answer.code) == (503, "overloaded")
        assert "Worker w1: Because." in answer.json["error"]["message"]


async def test_a_stream_that_waits_shows_signs_of_life_and_ends_with_the_reason(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshnet_worker.head_tokens.SIGN_SECONDS", 0.01)
    monkeypatch.setattr("meshnet_worker.chat.KEEP_ALIVE_SECONDS", 0.02)
    async with serve(wait_seconds=0.2) as client:
        client.route.refuses_with = "kv_exhausted"
        answer = await client.chat(stream=True)
        assert answer.status == 200
        # A comment commits nobody: who proxies it may still try another Head Worker.
        assert answer.events[:2] == [": keep-alive"] * 2
        assert answer.chunks[0]["error"]["code"] == "overloaded"
        assert answer.events[-1] == "data: [DONE]"


async def test_a_client_that_leaves_while_it_waits_leaves_the_queue(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshnet_worker.head_tokens.SIGN_SECONDS", 0.01)
    monkeypatch.setattr("meshnet_worker.chat.KEEP_ALIVE_SECONDS", 0.02)
    async with serve(wait_seconds=60) as client:
        client.route.refuses_with = "kv_exhausted"
        body = {"model": "tiny", "messages": [{"role": "user", "content": "w1"}], "stream": True}
        headers = {TICKET_HEADER: token_of(ticket())}
        async with (
            aiohttp.ClientSession() as session,
            session.post(client.url, json=body, headers=headers) as response,
        ):
            await response.content.readline()
            assert client.route.heads.waiting == 1
            response.close()
        await client.until_nobody_waits()


async def test_a_client_that_leaves_closes_its_session(serve: Serve) -> None:
    async with serve(1) as client:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "w1"}], "stream": True}
        headers = {TICKET_HEADER: token_of(ticket())}
        async with (
            aiohttp.ClientSession() as session,
            session.post(client.url, json=body, headers=headers) as response,
        ):
            await response.content.readline()
            assert not client.route.is_closed
            response.close()
        await client.route.changes.until(lambda: client.route.is_closed)


async def test_a_client_that_leaves_before_anything_came_leaves_the_queue(serve: Serve) -> None:
    async with serve(wait_seconds=60) as client:
        client.route.refuses_with = "kv_exhausted"
        async with ending_tasks() as tasks:
            tasks.create_task(client.chat())
            await client.route.changes.until(lambda: client.route.heads.waiting)
        await client.until_nobody_waits()


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}", b"\xff"])
async def test_a_request_that_is_malformed_is_a_400(body: bytes, serve: Serve) -> None:
    async with serve() as client:
        assert (await client.post(body, {TICKET_HEADER: token_of(ticket())})).status == 400


async def test_a_body_over_the_limit_is_a_413_though_a_record_may_come_with_it(
    serve: Serve,
) -> None:
    async with serve() as client:
        answer = await client.chat("w1", user="x" * MAX_BODY_BYTES)
        assert (answer.status, answer.code) == (413, "request_too_large")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_ticket_that_is_in_use_is_a_403(stream: bool, serve: Serve) -> None:
    async with serve(1, wait_seconds=60.0) as client, ending_tasks() as tasks:
        client.route.refuses_with = "kv_exhausted"
        tasks.create_task(client.chat(max_tokens=1))
        await client.route.changes.until(lambda: client.route.heads.waiting)
        answer = await client.chat(max_tokens=1, stream=stream)
        assert (answer.status, answer.code) == (403, "invalid_ticket")
        assert client.route.heads.waiting == 1


async def test_the_tokens_of_a_prompt_are_counted_and_nothing_is_opened(serve: Serve) -> None:
    async with serve() as client:
        messages = [{"role": "user", "content": "w1 " * (CONTEXT_TOKENS + 1)}]
        where, _ = CHAT.counting_paths
        answer = await client.ask(where, messages=messages)
        assert (answer.status, answer.json) == (
            200,
            {"object": "response.input_tokens", "input_tokens": CONTEXT_TOKENS + 1},
        )
        assert (await client.ask(where, messages=[])).status == 400
        assert client.route.sent == []
