"""Workers fetch their own Layers from a mirror, and load them again when it is gone."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from demo.local_mesh import LocalMesh, budget_for, gaps
from demo.processes import Program
from meshnet_common.shard_range import ShardRange
from tests.mesh.harness import chat_body, post
from tests.mesh.small_models import LAYERS, ids_of, prompt_of, text_of, whole_model_answer
from tests.weights import SmallMirror, mirror_of

ANSWER_TOKENS = 12
HALF = LAYERS // 2
STOP_SECONDS = 10.0


@contextmanager
def mirror_in_a_thread(folder: Path) -> Iterator[SmallMirror]:
    started, ended = threading.Event(), threading.Event()
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    mirrors: list[SmallMirror] = []

    async def serve() -> None:
        async with mirror_of(files) as mirror:
            mirrors.append(mirror)
            started.set()
            await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=partial(asyncio.run, serve()))
    thread.start()
    try:
        assert started.wait(STOP_SECONDS)
        yield mirrors[0]
    finally:
        ended.set()
        thread.join(STOP_SECONDS)


def answer(mesh: LocalMesh, prompt: list[int]) -> list[int]:
    body = chat_body("small", text_of(prompt), max_tokens=ANSWER_TOKENS)
    reply = post(f"{mesh.tracker_url}/v1/chat/completions", body)
    assert reply.status == 200, reply.body
    return ids_of(reply.text)


def parts_of(folder: Path) -> list[str]:
    return sorted(file.stem for file in folder.glob("*/layer-*.safetensors"))


def test_a_model_is_served_from_a_mirror_and_each_worker_has_its_half(
    new_mesh: Callable[[], LocalMesh], random_gpt2: Path, tmp_path: Path
) -> None:
    mesh = new_mesh()
    prompt = prompt_of(40)
    expected, _ = whole_model_answer(random_gpt2, tuple(prompt), ANSWER_TOKENS)
    places = {name: tmp_path / name for name in ("worker-1", "worker-2")}

    def start(name: str, start_layer: int) -> Program:
        run = ShardRange(start_layer, start_layer + HALF)
        budget = budget_for(mesh.preset("small"), run)
        return mesh.start_worker(name, budget, ("--weights-dir", str(places[name])))

    with mirror_in_a_thread(random_gpt2) as mirror:
        copy = ("--digests-from", str(random_gpt2))
        mesh.add_preset(mirror.url, "small", "--quantization", "float32", *copy)
        mesh.start_tracker("--heartbeat-seconds", "1", "--lost-after-seconds", "4")
        before = mirror.sent_bytes
        start("worker-1", 0)
        mesh.programs.wait_for(
            lambda: len(parts_of(places["worker-1"])) == HALF, STOP_SECONDS * 6, "it has its half"
        )
        second = start("worker-2", HALF)
        mesh.wait_until_served("small")
        spent = mirror.sent_bytes - before
        assert answer(mesh, prompt) == expected
    # The mirror is gone; a Worker that is killed and comes back needs it no more.
    mesh.programs.kill(second)
    start("worker-2", HALF)
    mesh.programs.wait_for(lambda: gaps(mesh.coverage("small")), STOP_SECONDS * 6, "it is missed")
    mesh.wait_until_served("small")
    assert answer(mesh, prompt) == expected
    assert [len(parts_of(place)) for place in places.values()] == [HALF, HALF]
    assert not set(parts_of(places["worker-1"])) & set(parts_of(places["worker-2"]))
    # Embeddings are needed at both ends, headers and texts by both.
    whole = sum(file.stat().st_size for file in random_gpt2.iterdir())
    assert spent < 1.3 * whole
