"""Text completions as a client of a Head Worker sees them."""

from typing import Any

import pytest

from meshnet_common.openai.apis import COMPLETIONS
from meshnet_common.protocol.sampling import TokenLogprobs
from tests.worker.chatting import CONTEXT_TOKENS, Answer, Client, Serve
from tests.worker.models import END_ID


async def complete(client: Client, prompt: Any = "w5 w6 w7", **fields: Any) -> Answer:
    return await client.ask(COMPLETIONS.url_path, prompt=prompt, **fields)


def texts(answer: Answer) -> list[str]:
    """Of each choice, streamed or whole."""
    assert answer.status == 200, answer.body
    told = answer.streamed_choices if b"data: " in answer.body else answer.json["choices"]
    joined: dict[int, str] = {}
    for one in told:
        joined[one["index"]] = joined.get(one["index"], "") + one["text"]
    return [joined[index] for index in sorted(joined)]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("prompt", ["w5 w6 w7", [5, 6, 7], [[5, 6, 7]]])
async def test_a_prompt_is_gone_on_with(prompt: Any, stream: bool, serve: Serve) -> None:
    async with serve(1, 2, END_ID) as client:
        answer = await complete(client, prompt, stream=stream)
        assert texts(answer) == ["w1 w2"]
        assert client.route.prompt_ids == [5, 6, 7]
        assert client.route.is_closed
        if stream:
            assert answer.events[-1] == "data: [DONE]"
            assert answer.chunks[0]["id"].startswith("cmpl-")
        else:
            assert answer.json["usage"]["total_tokens"] == 6


@pytest.mark.parametrize("stream", [True, False])
async def test_each_prompt_has_choices_of_its_own(stream: bool, serve: Serve) -> None:
    async with serve(1) as client:
        client.route.others = [[2], [3], [4]]
        options = {"stream_options": {"include_usage": True}} if stream else {}
        fields = {"n": 2, "max_tokens": 1, "echo": True, "stream": stream, **options}
        answer = await complete(client, ["w5 w6", "w7"], **fields)
        assert texts(answer) == ["w5 w6w1", "w5 w6w2", "w7w3", "w7w4"]
        usage = (answer.chunks[-1] if stream else answer.json)["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 4)


async def test_a_completion_has_sixteen_tokens_where_nothing_is_said(serve: Serve) -> None:
    async with serve(*[1] * 20) as client:
        answer = await complete(client)
        assert answer.json["usage"]["completion_tokens"] == 16
        assert answer.finish_reason == "length"


async def test_how_likely_tokens_were_is_told_in_the_older_shape(serve: Serve) -> None:
    async with serve(1, 2) as client:
        client.route.likely = {1: TokenLogprobs(-0.5, ((1, -0.5), (3, -1.0)))}
        answer = await complete(client, logprobs=2, max_tokens=2)
        told = answer.json["choices"][0]["logprobs"]
        assert told["tokens"] == ["w1", " w2"]
        assert told["top_logprobs"][0]["w1"] == -0.5
        assert told["text_offset"] == [0, 2]
        assert client.route.sampling is not None
        assert client.route.sampling.logprobs == 2


async def test_a_prompt_that_is_too_long_is_a_400_with_both_numbers(serve: Serve) -> None:
    async with serve() as client:
        answer = await complete(client, [[5], [1] * CONTEXT_TOKENS])
        assert (answer.status, answer.code) == (400, "context_length_exceeded")
        error = answer.json["error"]
        assert (error["param"], error["n_prompt_tokens"], error["n_ctx"]) == (
            "prompt[1]",
            CONTEXT_TOKENS,
            CONTEXT_TOKENS,
        )
        assert client.route.sent == []
