"""More answers than the lent memory holds: each is exactly what it would have been alone.

Three Workers have a handful of KV Blocks in each Layer, so that answers wait, give way to older
ones and go on; one that could never fit learns it at once.
"""

import json
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from demo.local_mesh import LocalMesh
from demo.processes import Program
from tests.mesh.harness import Reply, chat_body, kv_report, post, start_tight_workers
from tests.mesh.small_models import ids_of, prompt_of, text_of, whole_model_answer

WORKERS = 3
KV_BYTES = 1 << 20
"""Five KV Blocks in each of three Layers of the small Llama."""
MODEL = "tight"
PROMPT_TOKENS = (41, 105, 45, 109, 49, 113, 53, 61)
"""Each of these answers outgrows its first reservation by one block."""
ANSWER_TOKENS = 90
SMALLEST_GAP = 1e-3
SETTLED_SECONDS = 15.0


@dataclass
class TightMesh:
    """A Mesh of one model, its Workers, and where to chat."""

    mesh: LocalMesh
    workers: list[Program]

    @property
    def url(self) -> str:
        return f"{self.mesh.tracker_url}/v1/chat/completions"

    @property
    def capacity(self) -> int:
        """Positions that the smallest pool of a Route holds."""
        reports = [kv_report(worker) for worker in self.workers]
        return min(r.block_positions * pool.blocks for r in reports for pool in r.pools)

    def ask(self, prompt: list[int], tokens: int) -> Reply:
        return post(self.url, chat_body(MODEL, text_of(prompt), max_tokens=tokens))

    def is_empty(self) -> bool:
        reports = [kv_report(worker) for worker in self.workers]
        return all(
            r.sessions == r.waiting == sum(pool.used for pool in r.pools) == 0 for r in reports
        )


@pytest.fixture(scope="module")
def tight(new_mesh: Callable[[], LocalMesh], random_llama: Path) -> TightMesh:
    mesh = new_mesh()
    mesh.add_preset(random_llama, MODEL, "--quantization", "float32")
    mesh.start_tracker("--headroom-bytes", str(KV_BYTES))
    workers = start_tight_workers(mesh, MODEL, WORKERS, KV_BYTES)
    assert len(mesh.route(MODEL).hops) == WORKERS
    return TightMesh(mesh, workers)


def test_answers_that_do_not_fit_together_are_what_they_would_have_been_alone(
    tight: TightMesh, random_llama: Path
) -> None:
    prompts = [prompt_of(tokens) for tokens in PROMPT_TOKENS]
    needed = sum(len(prompt) + ANSWER_TOKENS for prompt in prompts)
    assert needed > 3 * tight.capacity
    free = [kv_report(worker).free_bytes for worker in tight.workers]
    with ThreadPoolExecutor(len(prompts) + 4) as clients:
        answers = [clients.submit(tight.ask, prompt, ANSWER_TOKENS) for prompt in prompts]
        leaving = [clients.submit(partial(leave_early, tight, number)) for number in range(4)]
        replies = [answer.result() for answer in answers]
        for one in leaving:
            one.result()
    for prompt, reply in zip(prompts, replies, strict=True):
        expected, gap = whole_model_answer(random_llama, tuple(prompt), ANSWER_TOKENS)
        assert gap > SMALLEST_GAP, "a near-tie may be settled either way"
        assert reply.status == 200, reply.body
        assert ids_of(reply.text) == expected
    tight.mesh.programs.wait_for(tight.is_empty, SETTLED_SECONDS, "all KV is free again")
    assert [kv_report(worker).free_bytes for worker in tight.workers] == free
    assert sum(kv_report(worker).preempted for worker in tight.workers) > 0


def leave_early(tight: TightMesh, number: int) -> None:
    """Hang up in the middle of an answer, or while it still waits."""
    body = {**chat_body(MODEL, text_of(prompt_of(30 + number)), max_tokens=200), "stream": True}
    request = urllib.request.Request(
        tight.url, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        for _ in range(2 + number):
            answer.readline()


def test_an_answer_that_outgrows_all_memory_ends_there_as_too_long(tight: TightMesh) -> None:
    capacity = tight.capacity
    reply = tight.ask(prompt_of(capacity - 20), 100)
    answer = json.loads(reply.body)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 21


def test_a_prompt_that_no_memory_holds_is_refused_at_once_with_the_numbers(
    tight: TightMesh,
) -> None:
    capacity = tight.capacity
    reply = tight.ask(prompt_of(capacity + 1), 10)
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
    assert (reply.error["n_prompt_tokens"], reply.error["n_ctx"]) == (capacity + 1, capacity)
    tight.mesh.programs.wait_for(tight.is_empty, SETTLED_SECONDS, "all KV is free again")
