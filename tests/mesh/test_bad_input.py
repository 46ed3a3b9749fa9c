"""Bad input gets a clear error in OpenAI's shape, and the Mesh goes on serving."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

from demo.local_mesh import LocalMesh
from demo.processes import command
from meshnet_common.protocol.bodies import ActivationsHeader, Segment
from meshnet_common.protocol.frames import FLAG_ZSTD, Frame, FrameKind, encode_frame
from meshnet_worker.transport.links import MAX_MESSAGE_BYTES
from tests.mesh.harness import Reply, chat_body, post, start_equal_workers
from tests.mesh.small_models import CONTEXT_TOKENS, prompt_of, text_of

MODEL = "small"
TINY_BUDGET_BYTES = 1 << 16
HIDDEN_SIZE = 256
FRAME_TYPE = "application/x-meshnet-frame"


@pytest.fixture(scope="module")
def mesh(new_mesh: Callable[[], LocalMesh], random_llama: Path) -> LocalMesh:
    mesh = new_mesh()
    mesh.add_preset(random_llama, MODEL, "--quantization", "float32")
    mesh.start_tracker()
    start_equal_workers(mesh, MODEL, 2)
    return mesh


def _ask(mesh: LocalMesh, body: bytes | dict[str, Any]) -> Reply:
    return post(f"{mesh.tracker_url}/v1/chat/completions", body)


@pytest.fixture(autouse=True)
def _still_serves_afterwards(mesh: LocalMesh) -> Any:
    yield
    assert _ask(mesh, chat_body(MODEL, "w1 w2 w3", max_tokens=2)).status == 200


def test_an_unknown_model_is_404(mesh: LocalMesh) -> None:
    reply = _ask(mesh, chat_body("no-such-model", "hello"))
    assert reply.status == 404
    assert reply.error["code"] == "model_not_found"
    assert "no-such-model" in reply.error["message"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff\xfe", b"[]", b'{"model": "small"}', b'{"model": 3, "messages": []}']
)
def test_a_malformed_body_is_400(mesh: LocalMesh, body: bytes) -> None:
    reply = _ask(mesh, body)
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"
    assert reply.headers["x-request-id"]


def test_a_prompt_longer_than_the_context_is_400(mesh: LocalMesh) -> None:
    reply = _ask(mesh, chat_body(MODEL, text_of(prompt_of(CONTEXT_TOKENS + 1)), max_tokens=1))
    assert reply.status == 400
    assert reply.error["code"] == "context_length_exceeded"
    assert str(CONTEXT_TOKENS) in reply.error["message"]


def _frame(payload: bytes = b"", flags: int = 0, kind: FrameKind = FrameKind.ACTIVATIONS) -> bytes:
    segment = Segment(session_id="nobody", epoch=(1, 0), start=0, tokens=1)
    header = ActivationsHeader(segments=(segment,), hidden_size=HIDDEN_SIZE, dtype="float32")
    return encode_frame(Frame(kind, flags, msgspec.msgpack.encode(header), payload))


GOOD_FRAME = _frame(bytes(HIDDEN_SIZE * 4))
BAD_FRAMES = {
    "junk": b"junk" * 100,
    "empty": b"",
    "truncated": GOOD_FRAME[:-1],
    "another version": b"MNF9" + GOOD_FRAME[4:],
    "a wrong checksum": GOOD_FRAME[:-1] + b"\1",
    "an oversized length": GOOD_FRAME[:8] + b"\xff\xff\xff\xff" + GOOD_FRAME[12:],
    "a bomb": _frame(zstandard.compress(bytes(1 << 28)), FLAG_ZSTD),
    "a bad header": encode_frame(Frame(FrameKind.ACTIVATIONS, 0, b"\xc1", b"")),
}


@pytest.mark.parametrize("what", BAD_FRAMES)
def test_a_bad_frame_is_400_and_costs_its_worker_nothing(mesh: LocalMesh, what: str) -> None:
    for hop in mesh.route(MODEL).hops:
        reply = post(f"{hop.url}/forward", BAD_FRAMES[what], FRAME_TYPE)
        assert reply.status == 400, reply.body
        assert reply.error["message"]


def test_a_frame_of_an_unknown_session_is_404(mesh: LocalMesh) -> None:
    for hop in mesh.route(MODEL).hops:
        reply = post(f"{hop.url}/forward", GOOD_FRAME, FRAME_TYPE)
        assert reply.status == 404, reply.body


def test_a_body_larger_than_any_frame_is_413(mesh: LocalMesh) -> None:
    url = mesh.route(MODEL).hops[0].url
    assert post(f"{url}/forward", bytes(MAX_MESSAGE_BYTES + 1), FRAME_TYPE).status == 413


def test_a_worker_that_fits_no_layer_ends_with_both_numbers(
    mesh: LocalMesh, tmp_path: Path
) -> None:
    smallest = min(mesh.preset(MODEL).variants[0].layer_bytes)
    arguments = ("start", "--tracker", mesh.tracker_url, "--port", "0")
    options = ("--vram", str(TINY_BUDGET_BYTES), "--state-dir", str(tmp_path))
    ended = _run(command("meshnet-worker"), *arguments, *options)
    assert ended.returncode == 5
    assert str(round(TINY_BUDGET_BYTES * 0.8))[:4] in ended.stderr
    assert str(smallest) in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_port_in_use_is_said_plainly(mesh: LocalMesh, tmp_path: Path) -> None:
    port = mesh.tracker_url.rsplit(":", 1)[1]
    database = ("--database", str(tmp_path / "tracker.sqlite3"))
    state = ("--state-dir", str(tmp_path))
    for arguments in (
        ("meshnet-tracker", "serve", "--port", port, *database),
        ("meshnet-worker", "start", "--tracker", mesh.tracker_url, "--port", port, *state),
        ("meshnet-gateway", "serve", "--mesh", mesh.tracker_url, "--port", port),
    ):
        ended = _run(command(arguments[0]), *arguments[1:])
        assert ended.returncode == 3, ended.stderr
        assert port in ended.stderr
        assert "Traceback" not in ended.stderr


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
