"""A real embedder beside a chat model, through the Tracker and the official client."""

import base64
import json
import math
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from demo.local_mesh import LocalMesh, budget_for
from meshnet_common.shard_range import ShardRange
from tests.mesh.harness import post

MODEL = "minilm"
DIMENSIONS = 384
CONTEXT_TOKENS = 512
TEXTS = ("A cat sits on the mat.", "A kitten rests on a rug.", "Shares fell on Monday.")
TOLERANCE = 1e-3
LEAVING = 8
LEAVING_SECONDS = 2.0
MANY_TEXTS = 250
"""To read those of all who leave takes two Workers minutes."""
SOON_SECONDS = 10.0
"""A pass that has begun is ended first."""


@pytest.fixture(scope="module")
def mesh(new_mesh: Callable[[], LocalMesh], minilm: Path, random_gpt2: Path) -> Iterator[LocalMesh]:
    mesh = new_mesh()
    mesh.add_preset(minilm, MODEL)
    mesh.add_preset(random_gpt2, "small")
    mesh.start_tracker("--heartbeat-seconds", "0.5", "--lost-after-seconds", "30")
    both = sum(
        budget_for(preset, ShardRange(0, preset.layer_count))
        for preset in (mesh.preset(MODEL), mesh.preset("small"))
    )
    workers = [mesh.start_worker(f"worker-{number}", 2 * both) for number in (1, 2)]
    mesh.programs.wait_until_ready(*workers)
    for model in (MODEL, "small"):
        mesh.wait_until_served(model)
    yield mesh
    mesh.programs.stop_all()


def embed(mesh: LocalMesh, texts: Sequence[str], **fields: object) -> list[list[float]]:
    with mesh.client() as client:
        answer = client.embeddings.create(model=MODEL, input=list(texts), **fields)  # type: ignore[arg-type]
    assert [one.index for one in answer.data] == list(range(len(texts)))
    return [one.embedding for one in answer.data]


def asked(mesh: LocalMesh, body: dict[str, Any]) -> dict[str, Any]:
    reply = post(f"{mesh.tracker_url}/v1/embeddings", body)
    assert reply.status == 200, reply.body
    answer: dict[str, Any] = json.loads(reply.body)
    return answer


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def test_alike_texts_have_alike_vectors_of_length_one(mesh: LocalMesh) -> None:
    cat, kitten, shares = embed(mesh, TEXTS)
    assert len(cat) == DIMENSIONS
    assert math.isclose(cosine(cat, cat), 1.0, abs_tol=TOLERANCE)
    assert cosine(cat, kitten) > 0.5 > 0.2 > cosine(cat, shares)


def test_a_text_alone_and_in_a_batch_agrees_in_both_formats(mesh: LocalMesh) -> None:
    together = embed(mesh, [*TEXTS, "word " * 300])
    for place, text in enumerate(TEXTS):
        alone = embed(mesh, [text], encoding_format="float")[0]
        assert alone == pytest.approx(together[place], abs=TOLERANCE)


def test_base64_is_little_endian_float32(mesh: LocalMesh) -> None:
    body = {"model": MODEL, "input": TEXTS[0], "encoding_format": "base64"}
    encoded = asked(mesh, body)["data"][0]["embedding"]
    raw = base64.b64decode(encoded)
    assert len(raw) == 4 * DIMENSIONS
    assert list(struct.unpack(f"<{DIMENSIONS}f", raw)) == embed(mesh, TEXTS[:1])[0]


def test_usage_counts_prompt_tokens_alone(mesh: LocalMesh) -> None:
    body = {"model": MODEL, "input": [TEXTS[0], TEXTS[0]]}
    usage = asked(mesh, body)["usage"]
    assert set(usage) == {"prompt_tokens", "total_tokens"}
    assert usage["prompt_tokens"] == usage["total_tokens"] == 2 * 9


def test_token_ids_are_as_good_as_their_text(mesh: LocalMesh) -> None:
    # [CLS] a cat sits on the mat . [SEP]
    ids = [101, 1037, 4937, 7719, 2006, 1996, 13523, 1012, 102]
    vector = asked(mesh, {"model": MODEL, "input": ids})["data"][0]["embedding"]
    assert vector == pytest.approx(embed(mesh, TEXTS[:1])[0], abs=TOLERANCE)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": ""}, "input", None),
        ({"input": "word " * CONTEXT_TOKENS}, "input", "context_length_exceeded"),
        ({"input": ["a", "word " * 600]}, "input[1]", "context_length_exceeded"),
        ({"input": [40_000]}, "input", None),
        ({"input": "a", "dimensions": 64}, "dimensions", None),
        ({"input": "a", "model": "small"}, "model", None),
    ],
)
def test_what_cannot_be_embedded_is_a_400_that_names_its_field(
    mesh: LocalMesh, fields: dict[str, object], param: str, code: str | None
) -> None:
    reply = post(f"{mesh.tracker_url}/v1/embeddings", {"model": MODEL, **fields})
    assert (reply.status, reply.error["param"], reply.error["code"]) == (400, param, code)
    if code:
        assert reply.error["n_ctx"] == CONTEXT_TOKENS


def test_the_longest_text_is_taken(mesh: LocalMesh) -> None:
    # Each is one token, and two more begin and end the text.
    assert len(embed(mesh, ["word " * (CONTEXT_TOKENS - 2)])[0]) == DIMENSIONS


def test_an_embedder_answers_no_chat(mesh: LocalMesh) -> None:
    with mesh.client() as client, pytest.raises(openai.BadRequestError, match="embeddings"):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi"}])


def test_an_unknown_embedder_is_not_found(mesh: LocalMesh) -> None:
    with mesh.client() as client, pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="nothing", input="a")


def test_clients_that_leave_cost_nobody_else_any_time(mesh: LocalMesh) -> None:
    body = json.dumps({"model": MODEL, "input": ["word " * 250] * MANY_TEXTS}).encode()
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    request = f"{head}Content-Type: application/json\r\n\r\n".encode() + body
    address = urlsplit(mesh.tracker_url)
    with ExitStack() as stack:
        clients = [
            stack.enter_context(
                socket.create_connection((address.hostname, address.port), LEAVING_SECONDS)
            )
            for _ in range(LEAVING)
        ]
        for client in clients:
            client.sendall(request)
        # Whatever has come by then, it is not their answer.
        with suppress(TimeoutError):
            assert clients[-1].recv(1) == b""
    left_at = time.monotonic()
    with ThreadPoolExecutor(4) as others:
        for vectors in others.map(lambda text: embed(mesh, [text]), ["a", "b", "c", "d"]):
            assert len(vectors[0]) == DIMENSIONS
    assert time.monotonic() - left_at < SOON_SECONDS


def test_embeddings_go_on_when_a_worker_is_killed(mesh: LocalMesh) -> None:
    before = embed(mesh, TEXTS[:1])[0]
    mesh.programs.wait_for(
        lambda: all(row.worker_count == 2 for row in mesh.coverage(MODEL)), 60.0, "both hold it"
    )
    mesh.programs.kill(next(p for p in mesh.programs.running if p.name == "worker-1"))
    for _ in range(4):
        assert embed(mesh, TEXTS[:1])[0] == pytest.approx(before, abs=TOLERANCE)
