"""A Gateway before real Workers: two Head Workers share its requests; who waits is told so."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from demo.local_mesh import LocalMesh
from demo.processes import Program
from tests.mesh.harness import chat_body, equal_budget, get, post, start_equal_workers, stream_lines
from tests.mesh.small_models import prompt_of, text_of

MODEL = "small"
HEADS_SECONDS = 60.0
REQUESTS = 10
ANSWER_TOKENS = 200
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def mesh(new_mesh: Callable[[], LocalMesh], random_gpt2: Path) -> LocalMesh:
    """Two Workers hold the first half of a GPT-2, two the second."""
    mesh = new_mesh()
    mesh.add_preset(random_gpt2, MODEL, "--quantization", "float32")
    mesh.start_tracker()
    start_equal_workers(mesh, MODEL, 2)
    for name in ("worker-3", "worker-4"):
        mesh.start_worker(name, equal_budget(mesh, MODEL, 2))
    mesh.programs.wait_for(lambda: len(_heads(mesh)) == 2, HEADS_SECONDS, "two heads serve")
    return mesh


def _heads(mesh: LocalMesh) -> list[str]:
    heads: list[str] = json.loads(get(f"{mesh.tracker_url}/v1/tracker-nodes/{MODEL}").body)[
        "endpoints"
    ]
    return heads


def _requests(gateway: Program) -> dict[str, int]:
    """How many requests each Endpoint got."""
    (served,) = json.loads(get(f"{gateway.url}/v1/gateway/status").body)["models"]
    return {one["base_url"]: one["requests"] for one in served["endpoints"]}


def _body(**fields: Any) -> dict[str, Any]:
    return chat_body(MODEL, text_of(prompt_of(20)), **{"max_tokens": 8, **fields})


@pytest.fixture
def gateway(mesh: LocalMesh) -> Iterator[Program]:
    gateway = mesh.start_gateway()
    yield gateway
    mesh.programs.kill(gateway)


def test_two_heads_get_equal_load_and_every_answer_is_the_same(
    mesh: LocalMesh, gateway: Program
) -> None:
    heads = _heads(mesh)
    direct = {post(f"{head}{CHAT}", _body()).text for head in heads}
    with ThreadPoolExecutor(REQUESTS) as clients:
        answers = list(
            clients.map(lambda _: post(f"{gateway.url}{CHAT}", _body()), range(REQUESTS))
        )

    assert {answer.status for answer in answers} == {200}
    assert {answer.text for answer in answers} == direct
    assert _requests(gateway) == dict.fromkeys(heads, REQUESTS // 2)


def test_the_second_of_two_streams_waits_in_line_and_gets_its_whole_answer(
    mesh: LocalMesh, tmp_path: Path
) -> None:
    settings = {
        "chat_models": [
            {
                "id": MODEL,
                "endpoints": [{"base_url": mesh.tracker_url, "max_concurrent_requests": 1}],
            }
        ],
        "ack_after_ms": 0,
        "keep_alive_seconds": 0.1,
    }
    path = tmp_path / "gateway.json"
    path.write_text(json.dumps(settings))
    gateway = mesh.start_gateway("--config", str(path))
    try:
        with ThreadPoolExecutor(2) as clients:
            both = list(
                clients.map(
                    lambda _: stream_lines(
                        f"{gateway.url}{CHAT}", _body(max_tokens=ANSWER_TOKENS), {}
                    ),
                    range(2),
                )
            )
    finally:
        mesh.programs.kill(gateway)

    answers = [[line for line in lines if line.startswith("data: ")] for lines in both]
    assert [lines[-1] for lines in answers] == ["data: [DONE]"] * 2
    assert len(answers[0]) == len(answers[1])
    told = {line for lines in both for line in lines if line.startswith(": accepted")}
    assert told >= {": accepted; queued position 0", ": accepted; queued position 1"}
    assert any(": keep-alive" in lines for lines in both)
