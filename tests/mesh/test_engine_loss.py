"""Killing an engine process costs the answers that it was working on some seconds, and no more."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionChunk

from demo.local_mesh import LocalMesh, gaps
from demo.processes import Program
from tests.mesh.harness import chat_body, engine_of, family, post

MODEL = "smollm2"
ANSWER_TOKENS = 60
SEEN_SECONDS = 10.0
STORY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "story": {"type": "string", "minLength": 120, "maxLength": 160},
        "moods": {
            "type": "array",
            "items": {"enum": ["glad", "sad"]},
            "minItems": 1,
            "maxItems": 3,
        },
        "pages": {"type": "integer", "minimum": 3, "maximum": 900},
    },
    "required": ["story", "moods", "pages"],
    "additionalProperties": False,
}
"""Longer than what has been streamed when the engine is killed."""


@pytest.fixture(scope="module")
def mesh(new_mesh: Callable[[], LocalMesh], smollm2: Path) -> LocalMesh:
    mesh = new_mesh()
    mesh.add_preset(smollm2, MODEL, "--quantization", "bfloat16")
    mesh.start_tracker()
    mesh.start_workers(MODEL, 3)
    mesh.wait_until_served(MODEL)
    return mesh


@pytest.mark.parametrize("place", [0, 1, 2], ids=["head", "middle", "tail"])
def test_streams_go_on_when_a_killed_engine_is_restarted(mesh: LocalMesh, place: int) -> None:
    worker = _worker_at(mesh, place)
    daemon, engine = family(worker)[0], engine_of(worker)
    with mesh.client() as client:
        stream = _stream(client)
        next(stream)

        engine.kill()

        is_open = partial(_has_gap, mesh)
        mesh.programs.wait_for(is_open, SEEN_SECONDS, "the coverage map shows the loss")
        chunks = list(stream)
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    usage = chunks[-1].usage
    assert [reason for reason in reasons if reason] == ["length"]
    assert usage is not None
    assert usage.completion_tokens == ANSWER_TOKENS
    mesh.wait_until_served(MODEL)
    answer = post(f"{mesh.tracker_url}/v1/chat/completions", chat_body(MODEL, "Hi", max_tokens=4))
    assert answer.status == 200
    assert family(worker)[0] == daemon
    assert engine_of(worker) != engine


@pytest.mark.parametrize("temperature", [0, 1])
def test_an_answer_keeps_to_its_schema_under_another_tail_engine(
    mesh: LocalMesh, temperature: int
) -> None:
    engine = engine_of(_worker_at(mesh, 2))
    with mesh.client() as client:
        stream = client.chat.completions.create(**_story(temperature), stream=True)
        # The role, and the first of the text.
        chunks = [next(stream) for _ in range(8)]
        engine.kill()
        chunks += stream
    text = "".join(choice.delta.content or "" for c in chunks for choice in c.choices)
    assert chunks[-1].choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(text), STORY)
    mesh.wait_until_served(MODEL)
    assert engine_of(_worker_at(mesh, 2)) != engine


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_whole_answer_keeps_to_its_schema(mesh: LocalMesh, temperature: int) -> None:
    with mesh.client() as client:
        (choice,) = client.chat.completions.create(**_story(temperature)).choices
    assert choice.finish_reason == "stop"
    jsonschema.validate(json.loads(choice.message.content or ""), STORY)


def test_an_answer_in_json_is_an_object_unless_it_is_cut(mesh: LocalMesh) -> None:
    with mesh.client() as client:
        asked = {**_story(1), "response_format": {"type": "json_object"}, "max_tokens": 12}
        choices = client.chat.completions.create(**asked, n=3).choices
    for choice in choices:
        text = choice.message.content or ""
        assert text.startswith("{")
        is_whole = choice.finish_reason == "stop"
        assert is_whole or choice.finish_reason == "length"
        assert not is_whole or isinstance(json.loads(text), dict)


def test_a_schema_that_cannot_be_kept_is_refused_before_anything_is_drawn(mesh: LocalMesh) -> None:
    for schema, word in (
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "string", "pattern": "(?=a)b"}, "look"),
    ):
        described = {"name": "story", "schema": schema}
        wanted = {"type": "json_schema", "json_schema": described}
        body = chat_body(MODEL, "Hi", response_format=wanted)
        answer = post(f"{mesh.tracker_url}/v1/chat/completions", body)
        assert answer.status == 400
        assert answer.error["param"].startswith("response_format")
        assert word in answer.error["message"]


def test_a_pattern_that_outgrows_its_limits_is_the_fault_of_who_asked(mesh: LocalMesh) -> None:
    schema = {"type": "string", "pattern": "(.{0,100}a.{0,100}b){30}"}
    wanted = {"type": "json_schema", "json_schema": {"name": "story", "schema": schema}}
    body = chat_body(MODEL, "Hi", response_format=wanted, max_tokens=200)
    answer = post(f"{mesh.tracker_url}/v1/chat/completions", body)
    assert (answer.status, answer.error["code"]) == (400, "unsupported_value")
    assert gaps(mesh.coverage(MODEL)) == []


def _story(temperature: int) -> dict[str, Any]:
    described = {"name": "story", "schema": STORY, "strict": True}
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Tell me a story about the sea, in JSON."}],
        "max_tokens": 400,
        "temperature": temperature,
        "seed": 6,
        "response_format": {"type": "json_schema", "json_schema": described},
    }


def _stream(client: OpenAI) -> Iterator[ChatCompletionChunk]:
    return client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Count to one thousand."}],
        max_tokens=ANSWER_TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )


def _worker_at(mesh: LocalMesh, place: int) -> Program:
    url = mesh.route(MODEL).hops[place].url
    return next(p for p in mesh.programs.running if p.url == url)


def _has_gap(mesh: LocalMesh) -> bool:
    return bool(gaps(mesh.coverage(MODEL)))
