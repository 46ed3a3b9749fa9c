"""When a Worker goes, the map shows the gap, requests name it, and a joiner fills it."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from demo.local_mesh import LocalMesh, budget_for, gaps
from demo.processes import Program
from meshnet_common.shard_range import ShardRange
from tests.mesh.harness import alive, chat_body, family, post, start_equal_workers
from tests.mesh.small_models import prompt_of, text_of

MODEL = "small"
GAP_SECONDS = 15.0
STOP_SECONDS = 5.0


@pytest.fixture(scope="module")
def mesh(new_mesh: Callable[[], LocalMesh], random_llama: Path) -> LocalMesh:
    mesh = new_mesh()
    mesh.add_preset(random_llama, MODEL, "--quantization", "float32")
    mesh.start_tracker()
    start_equal_workers(mesh, MODEL, 3)
    return mesh


def _middle_worker(mesh: LocalMesh) -> tuple[Program, ShardRange]:
    hop = mesh.route(MODEL).hops[1]
    program = next(p for p in mesh.programs.running if p.url == hop.url)
    return program, hop.shard_range


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_a_gap_is_shown_named_and_filled_by_a_joiner(
    mesh: LocalMesh, number: signal.Signals
) -> None:
    answer_url = f"{mesh.tracker_url}/v1/chat/completions"
    body = chat_body(MODEL, text_of(prompt_of(20)), max_tokens=8)
    before = post(answer_url, body)
    worker, missing = _middle_worker(mesh)

    processes = family(worker)
    mesh.programs.let_end(worker, number)
    mesh.programs.wait_for(lambda: gaps(mesh.coverage(MODEL)), GAP_SECONDS, "the gap shows")
    refused = post(answer_url, body)
    mesh.programs.wait_for(lambda: not alive(processes), STOP_SECONDS, "its engine ends with it")
    mesh.start_worker(f"joiner-{number.name}", budget_for(mesh.preset(MODEL), missing))
    mesh.wait_until_served(MODEL)
    after = post(answer_url, body)

    assert refused.status == 503
    assert refused.error["code"] == "model_unavailable"
    assert f"{missing.start}-{missing.end - 1} have" in refused.error["message"]
    assert (before.status, after.status) == (200, 200)
    assert after.text == before.text


def test_the_gap_is_exactly_what_the_lost_worker_served(mesh: LocalMesh) -> None:
    worker, missing = _middle_worker(mesh)
    mesh.programs.kill(worker)
    shown = mesh.programs.wait_for(lambda: gaps(mesh.coverage(MODEL)), GAP_SECONDS, "the gap shows")
    assert shown == [missing]
