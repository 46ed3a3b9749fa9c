"""Three Workers in float32 give exactly what transformers' own `generate` gave.

The cases were made with transformers on the whole model. Token ids are compared where a Head Worker
shows them; through the Tracker it is text, token counts and the reason to stop.
"""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionChunk

from demo.local_mesh import LocalMesh
from tests.mesh.harness import data_file, post, stream_lines

CASES: list[dict[str, Any]] = json.loads(data_file("smollm2_greedy_float32.json").read_text())
MODEL = "smollm2-float32"
END_ID = 2
TOKEN_IDS = ": token-ids "


@pytest.fixture(scope="module")
def mesh(new_mesh: Callable[[], LocalMesh], smollm2: Path) -> LocalMesh:
    mesh = new_mesh()
    mesh.add_preset(smollm2, MODEL, "--quantization", "float32")
    mesh.start_tracker()
    mesh.start_workers(MODEL, 3)
    mesh.wait_until_served(MODEL)
    return mesh


def _request(case: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": case["messages"],
        "max_tokens": case["max_tokens"],
        "temperature": 0,
    }


def _finish_reason(case: dict[str, Any]) -> str:
    return "stop" if case["token_ids"][-1] == END_ID else "length"


def test_no_worker_holds_the_whole_model(mesh: LocalMesh) -> None:
    assert [len(hop.shard_range) for hop in mesh.route(MODEL).hops] == [10, 10, 10]


def _stream(client: OpenAI, case: dict[str, Any]) -> list[ChatCompletionChunk]:
    stream = client.chat.completions.create(
        **_request(case), stream=True, stream_options={"include_usage": True}
    )
    return list(stream)


def _text(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(choice.delta.content or "" for c in chunks for choice in c.choices)


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_a_streamed_answer_is_exact(mesh: LocalMesh, case: dict[str, Any]) -> None:
    with mesh.client() as client:
        chunks = _stream(client, case)
    usage = chunks[-1].usage
    assert _text(chunks) == case["text"]
    assert chunks[-2].choices[-1].finish_reason == _finish_reason(case)
    assert usage is not None
    assert usage.completion_tokens == len(case["token_ids"])
    assert usage.prompt_tokens == case["prompt_tokens"]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_a_stream_has_exactly_the_token_ids_of_generate(
    mesh: LocalMesh, case: dict[str, Any]
) -> None:
    head = mesh.route(MODEL).hops[0].url
    lines = stream_lines(
        f"{head}/v1/chat/completions", _request(case), {"x-meshnet-token-ids": "1"}
    )
    shown = [line.removeprefix(TOKEN_IDS) for line in lines if line.startswith(TOKEN_IDS)]
    assert [int(token_id) for ids in shown for token_id in ids.split()] == case["token_ids"]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_a_whole_answer_is_exact(mesh: LocalMesh, case: dict[str, Any]) -> None:
    with mesh.client() as client:
        answer = client.chat.completions.create(**_request(case))
    assert answer.choices[0].message.content == case["text"]
    assert answer.choices[0].finish_reason == _finish_reason(case)
    assert answer.usage.completion_tokens == len(case["token_ids"])
    assert answer.usage.prompt_tokens == case["prompt_tokens"]


def test_answers_that_run_side_by_side_stay_exact(mesh: LocalMesh) -> None:
    cases = CASES[:4]
    with mesh.client() as client, ThreadPoolExecutor(len(cases)) as clients:
        answers = list(clients.map(partial(_stream, client), cases))
    assert [_text(chunks) for chunks in answers] == [case["text"] for case in cases]


def test_the_gateway_passes_the_same_stream_on(mesh: LocalMesh) -> None:
    gateway = mesh.start_gateway()
    with mesh.client(gateway.url) as client:
        chunks = _stream(client, CASES[0])
    assert _text(chunks) == CASES[0]["text"]


WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "get_time"}},
]
FORCED: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
    "tools": TOOLS,
    "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
    "temperature": 0,
    "max_tokens": 100,
}


def test_a_forced_call_keeps_to_its_schema_streamed_and_whole(mesh: LocalMesh) -> None:
    with mesh.client() as client:
        whole = client.chat.completions.create(**FORCED).choices[0]
        with client.chat.completions.stream(**FORCED) as stream:
            events = [event.type for event in stream]
            joined = stream.get_final_completion().choices[0]
    (call,), (streamed,) = whole.message.tool_calls, joined.message.tool_calls or []
    jsonschema.validate(json.loads(call.function.arguments), WEATHER)
    assert (call.function.name, whole.message.content) == ("get_weather", None)
    assert (streamed.function.name, streamed.function.arguments) == (
        call.function.name,
        call.function.arguments,
    )
    assert events.count("tool_calls.function.arguments.delta") > 5
    assert whole.finish_reason == joined.finish_reason == "tool_calls"


def test_what_a_call_gave_is_told_to_the_model(mesh: LocalMesh) -> None:
    with mesh.client() as client:
        asked = client.chat.completions.create(**FORCED)
        message = asked.choices[0].message
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Rain."}
        history = [*FORCED["messages"], message.model_dump(exclude_none=True), result]
        told = client.chat.completions.create(
            **{**FORCED, "messages": history, "tool_choice": "none", "max_tokens": 5}
        )
    assert told.choices[0].message.content
    assert told.usage.prompt_tokens > 40


def test_a_completion_says_the_same_streamed_and_whole(mesh: LocalMesh) -> None:
    asked: dict[str, Any] = {"model": MODEL, "prompt": ["Once upon", "The sea is"], "max_tokens": 6}
    asked |= {"temperature": 0, "logprobs": 2}
    with mesh.client() as client:
        whole = client.completions.create(**asked)
        told = [choice for chunk in client.completions.create(**asked, stream=True)
                for choice in chunk.choices]  # fmt: skip
    for choice in whole.choices:
        own = [one for one in told if one.index == choice.index]
        assert "".join(one.text for one in own) == choice.text
        offsets = [place for one in own if one.logprobs for place in one.logprobs.text_offset]
        assert offsets == choice.logprobs.text_offset
        assert "".join(choice.logprobs.tokens) == choice.text
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert whole.usage.completion_tokens == 12


def test_a_response_says_the_same_streamed_and_whole(mesh: LocalMesh) -> None:
    case = CASES[0]
    asked: dict[str, Any] = {"model": MODEL, "input": case["messages"], "temperature": 0}
    asked["max_output_tokens"] = case["max_tokens"]
    with mesh.client() as client:
        whole = client.responses.create(**asked)
        with client.responses.stream(**asked) as stream:
            events = list(stream)
            joined = stream.get_final_response()
    assert whole.output_text == joined.output_text == case["text"]
    assert joined.usage == whole.usage
    assert whole.usage.input_tokens == case["prompt_tokens"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"


def test_a_forced_call_of_a_response_is_an_item(mesh: LocalMesh) -> None:
    tool: Any = {"type": "function", "name": "get_weather", "parameters": WEATHER, "strict": True}
    choice: Any = {"type": "function", "name": "get_weather"}
    with mesh.client() as client:
        told = client.responses.create(
            model=MODEL, input="Weather in Paris?", tools=[tool], tool_choice=choice, temperature=0
        )
        output: list[Any] = list(told.output)
        (call,) = output
        jsonschema.validate(json.loads(call.arguments), WEATHER)
        given = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}
        history: list[Any] = [{"role": "user", "content": "Weather in Paris?"}, call, given]
        after = client.responses.create(
            model=MODEL, input=history, temperature=0, max_output_tokens=5
        )
    assert (call.type, call.name, told.status) == ("function_call", "get_weather", "completed")
    assert after.output_text


def test_the_tokens_of_a_chat_are_counted_as_its_answer_counts_them(mesh: LocalMesh) -> None:
    body = {"model": MODEL, "messages": CASES[0]["messages"]}
    reply = post(f"{mesh.tracker_url}/v1/chat/completions/input_tokens", body)
    assert json.loads(reply.body)["input_tokens"] == CASES[0]["prompt_tokens"]
