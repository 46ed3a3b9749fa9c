"""Every program ends when it is told to, leaves no process and no port, and says goodbye."""

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from openai import OpenAI

from demo.local_mesh import LocalMesh, gaps
from demo.processes import Program
from tests.mesh.harness import (
    alive,
    chat_body,
    engine_of,
    equal_budget,
    family,
    is_port_free,
    post,
    seconds_until_ended,
    start_equal_workers,
)
from tests.mesh.small_models import prompt_of, text_of

MODEL = "small"
STOP_SECONDS = 5.0
GOODBYE_SECONDS = 3.0
ANSWER_TOKENS = 200
DRAINING = "info draining "
"""In the log of a Worker that has begun to."""


@pytest.fixture(scope="module")
def mesh(new_mesh: Callable[[], LocalMesh], random_gpt2: Path) -> LocalMesh:
    mesh = new_mesh()
    mesh.add_preset(random_gpt2, MODEL, "--quantization", "float32")
    mesh.start_tracker()
    start_equal_workers(mesh, MODEL, 2)
    return mesh


def _ask(mesh: LocalMesh) -> int:
    body = chat_body(MODEL, text_of(prompt_of(20)), max_tokens=8)
    return post(f"{mesh.tracker_url}/v1/chat/completions", body).status


def _pieces(client: OpenAI) -> Iterator[str]:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": text_of(prompt_of(20))}],
        max_tokens=ANSWER_TOKENS,
        temperature=0,
        stream=True,
    )
    for chunk in stream:
        if piece := chunk.choices[0].delta.content:
            yield piece


def _answer(mesh: LocalMesh) -> str:
    with mesh.client() as client:
        return "".join(_pieces(client))


def _start_again(mesh: LocalMesh, worker: Program) -> None:
    mesh.start_worker(worker.name, equal_budget(mesh, MODEL, 2))
    mesh.wait_until_served(MODEL)


def _end(mesh: LocalMesh, program: Program, number: signal.Signals) -> None:
    """Send the signal and check all that a clean exit is."""
    processes = family(program)
    url = program.url
    mesh.programs.let_end(program, number)
    assert seconds_until_ended(program, STOP_SECONDS) < STOP_SECONDS
    assert program.process.returncode == 0, program.log_tail()
    mesh.programs.wait_for(lambda: not alive(processes), 1.0, "no orphan is left")
    assert is_port_free(url)


def test_a_killed_engine_is_started_again_and_serves_again(mesh: LocalMesh) -> None:
    worker = next(p for p in mesh.programs.running if p.name == "worker-1")
    engine_of(worker).kill()
    mesh.programs.wait_for(lambda: _ask(mesh) == 200, 60.0, "the worker serves again")
    assert not worker.has_ended()


def test_only_engines_import_torch(mesh: LocalMesh) -> None:
    mesh.start_gateway()
    for program in mesh.programs.running:
        mapped = {m.path for m in psutil.Process(program.process.pid).memory_maps()}
        assert [path for path in mapped if "torch" in Path(path).name] == [], program.name
    engine = engine_of(next(p for p in mesh.programs.running if p.name == "worker-1"))
    assert any("torch" in Path(m.path).name for m in engine.memory_maps())


def test_a_worker_finishes_what_nobody_can_take_over_and_then_ends(mesh: LocalMesh) -> None:
    expected = _answer(mesh)
    worker = next(p for p in mesh.programs.running if p.name == "worker-2")
    with mesh.client() as client:
        pieces = _pieces(client)
        beginning = next(pieces)
        mesh.programs.let_end(worker, signal.SIGTERM)
        assert beginning + "".join(pieces) == expected
    assert seconds_until_ended(worker, STOP_SECONDS) < STOP_SECONDS
    assert worker.process.returncode == 0, worker.log_tail()
    _start_again(mesh, worker)


def test_a_second_signal_ends_a_worker_in_the_middle_of_an_answer(mesh: LocalMesh) -> None:
    worker = next(p for p in mesh.programs.running if p.name == "worker-2")
    drained = worker.log.read_text().count(DRAINING)
    with mesh.client() as client:
        next(_pieces(client))
        mesh.programs.let_end(worker, signal.SIGTERM)
        mesh.programs.wait_for(
            lambda: worker.log.read_text().count(DRAINING) > drained, STOP_SECONDS, "it drains"
        )
        worker.process.send_signal(signal.SIGTERM)
        assert seconds_until_ended(worker, STOP_SECONDS) < STOP_SECONDS
        assert worker.process.returncode == 0, worker.log_tail()
    _start_again(mesh, worker)


def test_the_gateway_ends_cleanly(mesh: LocalMesh) -> None:
    gateway = next(p for p in mesh.programs.running if p.name == "gateway")
    _end(mesh, gateway, signal.SIGTERM)


def test_a_worker_ends_cleanly_and_says_goodbye(mesh: LocalMesh) -> None:
    worker = next(p for p in mesh.programs.running if p.name == "worker-2")
    began = time.monotonic()
    _end(mesh, worker, signal.SIGTERM)
    mesh.programs.wait_for(lambda: gaps(mesh.coverage(MODEL)), GOODBYE_SECONDS, "the gap shows")
    assert time.monotonic() - began < STOP_SECONDS + GOODBYE_SECONDS


def test_ctrl_c_ends_a_worker_cleanly(mesh: LocalMesh) -> None:
    worker = next(p for p in mesh.programs.running if p.name == "worker-1")
    _end(mesh, worker, signal.SIGINT)


def test_the_tracker_ends_cleanly(mesh: LocalMesh) -> None:
    tracker = next(p for p in mesh.programs.running if p.name == "tracker")
    _end(mesh, tracker, signal.SIGTERM)
