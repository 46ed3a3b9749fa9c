"""Streams that share every engine step answer exactly as each would alone.

Prompts of many lengths, so that Prefill Chunks and Decode Steps meet in one Batch; between them,
clients that hang up in the middle of their answers.
"""

import json
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from demo.local_mesh import LocalMesh
from tests.mesh.harness import chat_body, post, start_equal_workers
from tests.mesh.small_models import ids_of, prompt_of, text_of, whole_model_answer

MODEL = "shared"
PROMPT_TOKENS = (1, 200, 17, 129, 64, 128, 5, 250)
ANSWER_TOKENS = 24
SMALLEST_GAP = 1e-3
QUITTER_LINES = 6
ANSWER_SECONDS = 60.0

whole_model = cache(whole_model_answer)


@pytest.fixture(scope="module")
def mesh(new_mesh: Callable[[], LocalMesh], random_llama: Path) -> Iterator[LocalMesh]:
    mesh = new_mesh()
    mesh.add_preset(random_llama, MODEL, "--quantization", "float32")
    mesh.start_tracker()
    start_equal_workers(mesh, MODEL, 3)
    yield mesh
    mesh.programs.stop_all()


@pytest.mark.parametrize("streams", [1, 4, 16])
def test_concurrent_streams_answer_as_serial_ones(
    mesh: LocalMesh, random_llama: Path, streams: int
) -> None:
    lengths = [PROMPT_TOKENS[number % len(PROMPT_TOKENS)] for number in range(streams)]
    prompts = [prompt_of(length) for length in lengths]
    expected = []
    for prompt in prompts:
        ids, smallest_gap = whole_model(random_llama, tuple(prompt), ANSWER_TOKENS)
        assert smallest_gap > SMALLEST_GAP, "a near-tie may be settled either way"
        expected.append(ids)
    with ThreadPoolExecutor(2 * streams) as clients:
        answers = [clients.submit(answer, mesh, prompt) for prompt in prompts]
        quitters = [clients.submit(quit_early, mesh, prompt) for prompt in prompts]
        assert [future.result() for future in answers] == expected
        assert all(future.result() for future in quitters)


def answer(mesh: LocalMesh, prompt: list[int]) -> list[int]:
    body = chat_body(MODEL, text_of(prompt), max_tokens=ANSWER_TOKENS)
    reply = post(f"{mesh.tracker_url}/v1/chat/completions", body)
    assert reply.status == 200, reply.body
    return ids_of(reply.text)


def quit_early(mesh: LocalMesh, prompt: list[int]) -> bool:
    """Hang up after a few events; returns whether any had come."""
    body = chat_body(MODEL, text_of(prompt), max_tokens=10 * ANSWER_TOKENS, stream=True)
    request = urllib.request.Request(
        f"{mesh.tracker_url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as lines:
        return any(
            line.startswith(b"data: ") for line, _ in zip(lines, range(QUITTER_LINES), strict=False)
        )
