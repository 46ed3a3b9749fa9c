"""Killing an engine process costs the answers that it was working on some seconds, and no more."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionChunk

from demo.local_mesh import LocalMesh, gaps
from demo.processes import Program
from tests.mesh.harness import chat_body, engine_of, family, post

MODEL = "smollm2"
ANSWER_TOKENS = 60
SEEN_SECONDS = 10.0


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
