"""A client that hangs up frees everything on every Hop at once, whatever its answer is doing."""

import json
import socket
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from demo.local_mesh import LocalMesh
from tests.mesh.harness import post

MODEL = "small"
FREED_SECONDS = 2.0
SEEN_SECONDS = 20.0
LONG = "word " * 150


@pytest.fixture(scope="module")
def mesh(new_mesh: Callable[[], LocalMesh], random_llama: Path) -> LocalMesh:
    mesh = new_mesh()
    mesh.add_preset(random_llama, MODEL, "--quantization", "float32")
    mesh.start_tracker()
    mesh.start_workers(MODEL, 3)
    mesh.wait_until_served(MODEL)
    return mesh


@pytest.mark.parametrize(
    ("prompt", "read_until"),
    [
        pytest.param("Hi", b"", id="at once"),
        pytest.param(LONG, b"", id="while its prompt runs"),
        pytest.param("Hi", b"data: ", id="in the middle of the answer"),
    ],
)
def test_a_client_that_hangs_up_leaves_nothing_on_any_hop(
    mesh: LocalMesh, prompt: str, read_until: bytes
) -> None:
    before = _answer(mesh)
    with _asking(mesh, prompt) as client:
        if read_until:
            _read(client, read_until)
        else:
            mesh.programs.wait_for(partial(_holds, mesh), SEEN_SECONDS, "somebody works for it")
    hung_up_at = time.monotonic()
    mesh.programs.wait_for(partial(_is_free, mesh), SEEN_SECONDS, "nobody works for it any more")
    assert time.monotonic() - hung_up_at < FREED_SECONDS
    # What came before has the same meaning as ever.
    assert _answer(mesh) == before


def _answer(mesh: LocalMesh) -> str:
    """Answer a chat of several turns, of which those that hang up have the first."""
    turns = [{"role": role, "content": "Hi"} for role in ("user", "assistant", "user")]
    body = {"model": MODEL, "messages": turns, "temperature": 0, "max_tokens": 20}
    reply = post(f"{mesh.tracker_url}/v1/chat/completions", body)
    assert reply.status == 200, reply.body
    return reply.text


def _asking(mesh: LocalMesh, prompt: str) -> socket.socket:
    address = urlsplit(mesh.tracker_url)
    client = socket.create_connection((address.hostname, address.port), timeout=SEEN_SECONDS)
    request = {
        "model": MODEL,
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "max_tokens": 100,
        "ignore_eos": True,
    }
    body = json.dumps(request).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: mesh\r\nContent-Length: {len(body)}\r\n"
    client.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
    return client


def _read(client: socket.socket, until: bytes) -> None:
    heard = b""
    while until not in heard:
        data = client.recv(4096)
        assert data, heard
        heard += data


def _reports(mesh: LocalMesh) -> list[dict[str, int]]:
    return [_report(program.url) for program in mesh.programs.running if program.name != "tracker"]


def _report(url: str) -> dict[str, int]:
    with urllib.request.urlopen(f"{url}/v1/kv", timeout=10) as answer:
        report: dict[str, int] = json.load(answer)
        return report


def _holds(mesh: LocalMesh) -> bool:
    return any(report["sessions"] for report in _reports(mesh))


def _is_free(mesh: LocalMesh) -> bool:
    return not any(report["sessions"] or report["waiting"] for report in _reports(mesh))
