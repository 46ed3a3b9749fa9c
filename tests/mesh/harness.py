"""What the mesh tests add to demo.local_mesh: plain HTTP, the fate of processes, small models."""

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil

from demo.local_mesh import HEADROOM_SHARE, LocalMesh
from demo.processes import Program
from meshnet_worker.kv_report import KvReport

ANSWER_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Reply:
    """One HTTP answer, whatever its status."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """What a chat answer says."""
        text: str = json.loads(self.body)["choices"][0]["message"]["content"]
        return text

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.body)["error"]
        return error


def start_equal_workers(mesh: LocalMesh, model: str, count: int) -> None:
    """Start Workers at once whose Budgets force a split, and wait until the model is served."""
    for number in range(1, count + 1):
        mesh.start_worker(f"worker-{number}", equal_budget(mesh, model, count))
    mesh.wait_until_served(model)


def equal_budget(mesh: LocalMesh, model: str, count: int) -> int:
    """The Budget, in bytes, with which so many Workers share a model equally.

    Each could pay for both ends, so the order in which they join does not matter. That is possible
    only where embeddings and output head together are smaller than one Layer.
    """
    preset = mesh.preset(model)
    variant = preset.variants[0]
    ends = variant.embedding_bytes + variant.head_bytes
    assert ends < variant.bytes_per_layer
    usable = -(-preset.layer_count // count) * variant.bytes_per_layer + ends
    return round(usable / (1 - HEADROOM_SHARE)) + 1


def start_tight_workers(mesh: LocalMesh, model: str, count: int, kv_bytes: int) -> list[Program]:
    """Start Workers that split a model equally and have little more than `kv_bytes` left.

    The Tracker must have been started with the same headroom.
    """
    variant = mesh.preset(model).variants[0]
    ends = variant.embedding_bytes + variant.head_bytes
    assert ends < variant.bytes_per_layer
    budget = -(-variant.layer_count // count) * variant.bytes_per_layer + ends + kv_bytes
    workers = [mesh.start_worker(f"worker-{number}", budget) for number in range(1, count + 1)]
    mesh.wait_until_served(model)
    return workers


def kv_report(worker: Program) -> KvReport:
    return msgspec.json.decode(get(f"{worker.url}/v1/kv").body, type=KvReport)


def post(url: str, body: bytes | dict[str, Any], content_type: str = "application/json") -> Reply:
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    return _open(urllib.request.Request(url, data, {"content-type": content_type}, method="POST"))


def get(url: str) -> Reply:
    return _open(urllib.request.Request(url))


def stream_lines(url: str, body: dict[str, Any], headers: dict[str, str]) -> list[str]:
    """Stream an answer and return its lines, comments included."""
    data = json.dumps({**body, "stream": True}).encode()
    every = {"content-type": "application/json", **headers}
    return _open(urllib.request.Request(url, data, every)).body.decode().splitlines()


def chat_body(model: str, content: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"model": model, "messages": messages, "temperature": 0, **fields}


def family(program: Program) -> list[psutil.Process]:
    """The program and all that it has started, while it still runs."""
    parent = psutil.Process(program.process.pid)
    return [parent, *parent.children(recursive=True)]


def engine_of(worker: Program) -> psutil.Process:
    """The engine process of a Worker."""
    return next(p for p in family(worker) if "meshnet_worker.engine.main" in p.cmdline())


def alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; a zombie has ended and only waits to be counted."""
    return [process for process in processes if _is_alive(process)]


def is_port_free(url: str) -> bool:
    port = int(url.rsplit(":", 1)[1])
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def seconds_until_ended(program: Program, limit: float) -> float:
    """Wait for a program that was told to end; raises TimeoutExpired."""
    began = time.monotonic()
    program.process.wait(limit)
    return time.monotonic() - began


def data_file(name: str) -> Path:
    return Path(__file__).parents[1] / "data" / name


def _open(request: urllib.request.Request) -> Reply:
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            return Reply(answer.status, dict(answer.headers.items()), answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return Reply(error.code, dict(error.headers.items()), error.read())


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
