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
from typing import Any

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


def test_choices_are_what_single_answers_with_their_seeds_would_be(mesh: LocalMesh) -> None:
    wishes = {"temperature": 1.0, "seed": 5, "logprobs": True, "top_logprobs": 3}
    whole = choices_of(mesh, n=3, **wishes)
    singles = [choices_of(mesh, **{**wishes, "seed": 5 + k})[0] for k in range(3)]
    assert whole == singles
    assert len({text for text, _ in whole}) == 3
    assert choices_of(mesh, n=3, stream=True, **wishes) == whole


def choices_of(mesh: LocalMesh, **wishes: Any) -> list[tuple[str, list[str]]]:
    """Text and tokens of each choice, streamed or whole."""
    body = chat_body(MODEL, text_of(prompt_of(17)), max_tokens=ANSWER_TOKENS, **wishes)
    reply = post(f"{mesh.tracker_url}/v1/chat/completions", body)
    assert reply.status == 200, reply.body
    lines = [line for line in reply.body.splitlines() if line.startswith(b"data: {")]
    bodies = [json.loads(line.removeprefix(b"data: ")) for line in lines or [reply.body]]
    choices: dict[int, tuple[str, list[str]]] = {}
    for told in (choice for one in bodies for choice in one["choices"]):
        text, tokens = choices.get(told["index"], ("", []))
        said = told.get("delta") or told.get("message") or {}
        told_tokens = (told["logprobs"] or {"content": []})["content"]
        assert all(len(token["top_logprobs"]) == 3 for token in told_tokens)
        tokens = [*tokens, *(token["token"] for token in told_tokens)]
        choices[told["index"]] = text + said.get("content", ""), tokens
    assert all("".join(tokens) == text for text, tokens in choices.values())
    return [choices[index] for index in sorted(choices)]


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
