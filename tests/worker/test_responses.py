"""Responses as a client of a Head Worker sees them."""

from typing import Any

import pytest

from meshnet_common.openai.apis import RESPONSES
from tests.worker.chatting import CONTEXT_TOKENS, Answer, Client, Serve
from tests.worker.models import END_ID


async def respond(client: Client, given: Any = "w5 w6 w7", **fields: Any) -> Answer:
    return await client.ask(RESPONSES.url_path, input=given, **fields)


async def test_a_whole_answer_is_one_message(serve: Serve) -> None:
    async with serve(1, 2, END_ID) as client:
        answer = await respond(client)
        assert answer.status == 200, answer.body
        (message,) = answer.json["output"]
        assert message["content"][0]["text"] == "w1 w2"
        assert (answer.json["status"], answer.json["id"]) == ("completed", "resp_s1")
        assert answer.json["usage"]["input_tokens"] == 3
        assert client.route.prompt_ids == [5, 6, 7]


async def test_a_stream_has_numbered_events_and_nothing_else(serve: Serve) -> None:
    async with serve(1, 2, 3) as client:
        answer = await respond(client, stream=True, max_output_tokens=2)
        assert all(line.startswith("data: {") for line in answer.events)
        assert [chunk["sequence_number"] for chunk in answer.chunks] == list(range(10))
        assert answer.chunks[-1]["type"] == "response.incomplete"
        assert answer.chunks[-1]["response"]["output"][0]["content"][0]["text"] == "w1 w2"


async def test_a_route_that_fails_in_the_middle_is_one_last_event(serve: Serve) -> None:
    async with serve(1, 2) as client:
        client.route.fails_with = "peer_lost"
        answer = await respond(client, stream=True)
        last = answer.chunks[-1]
        assert (last["type"], last["code"]) == ("error", "worker_lost")
        assert last["sequence_number"] == len(answer.chunks) - 1
        assert last.keys() == {"type", "code", "message", "param", "sequence_number"}
        assert "[DONE]" not in answer.body.decode()


async def test_an_input_that_is_too_long_is_a_400_with_both_numbers(serve: Serve) -> None:
    async with serve() as client:
        answer = await respond(client, "w1 " * CONTEXT_TOKENS)
        assert (answer.status, answer.code) == (400, "context_length_exceeded")
        assert answer.json["error"]["param"] == "input"


@pytest.mark.parametrize("url_path", RESPONSES.counting_paths[:1])
async def test_the_tokens_of_an_input_are_counted(url_path: str, serve: Serve) -> None:
    async with serve() as client:
        answer = await client.ask(url_path, input="w5 w6 w7")
        assert answer.json["object"] == "response.input_tokens"
        assert answer.json["input_tokens"] == 3
        assert client.route.sent == []
