"""A hub of a few routes on loopback, with a store of big files elsewhere; the Worker's side runs in
a process of its own, since the hub's client reads its settings when it is imported."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from meshnet_common.edge.serving import listening
from tests.weights import LAYER_BYTES, SmallMirror, checkpoint, mirror_of, tensors_of
from tests.worker.weights.opening import parts_in, tensors_in

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROOT = Path(__file__).parents[3]
FILES = checkpoint()
FETCH = """
import asyncio, sys
from pathlib import Path
from meshnet_common.errors import MeshnetError
from meshnet_common.shard_range import ShardRange
from meshnet_worker.weights.library import WeightsLibrary, WeightsSettings
from tests.worker.weights.opening import fetch, model_at

async def main():
    library = WeightsLibrary(WeightsSettings(Path(sys.argv[1])))
    try:
        weights = await library.open(model_at("org/tiny"))
        await fetch(weights, 4, 8)
        print(weights.folder)
    except MeshnetError as error:
        print(type(error).__name__, error)
    finally:
        await library.close()

asyncio.run(main())
"""


class SmallHub:
    """Answers for `org/tiny`, and sends whoever asks to the store where its files are."""

    def __init__(self, store: SmallMirror) -> None:
        self.store = store
        self.url = ""
        self.tokens: set[str | None] = set()
        self.is_gated = False

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/org/tiny/resolve/{revision}/{name}", self._resolve)
        return app

    async def _resolve(self, request: web.Request) -> web.StreamResponse:
        self.tokens.add(request.headers.get("Authorization"))
        name = request.match_info["name"]
        headers = {"X-Repo-Commit": COMMIT, "ETag": '"1"'}
        if self.is_gated:
            return web.Response(status=403, headers={"X-Error-Code": "GatedRepo"})
        if name not in self.store.files:
            return web.Response(status=404, headers={"X-Error-Code": "EntryNotFound", **headers})
        if name == "config.json":
            return web.Response(body=self.store.files[name], headers=headers)
        # Only the commit that was asked for first may be read from.
        assert request.match_info["revision"] == COMMIT
        headers["Location"] = f"{self.store.url}/{name}"
        return web.Response(status=302, headers=headers)


@asynccontextmanager
async def small_hub() -> AsyncIterator[SmallHub]:
    async with mirror_of(FILES) as store:
        hub = SmallHub(store)
        async with listening(hub.application(), "127.0.0.1", 0) as hub.url:
            yield hub


async def fetch_in_a_process(folder: Path, endpoint: str, **settings: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", FETCH, str(folder / "fetched")),
        env={
            **os.environ,
            "HF_ENDPOINT": endpoint,
            "HF_HOME": str(folder / "hub"),
            "HF_TOKEN": "hf_secret",
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            **settings,
        },
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return output.decode().splitlines()[-1]


def cached(folder: Path, names: list[str]) -> Path:
    """A snapshot as the hub's client leaves it."""
    repository = folder / "hub" / "hub" / "models--org--tiny"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    for name in names:
        (snapshot / name).write_bytes(FILES[name])
    return snapshot


async def test_a_third_of_a_repository_is_fetched_by_ranges(tmp_path: Path) -> None:
    async with small_hub() as hub:
        folder = Path(await fetch_in_a_process(tmp_path, hub.url))
        assert hub.tokens == {"Bearer hf_secret"}
        assert hub.store.sent_bytes < 4 * LAYER_BYTES + 300_000
    assert parts_in(folder) == {f"layer-{n:05d}" for n in range(4, 8)}
    assert tensors_in(folder).items() <= tensors_of(FILES).items()
    assert json.loads((folder / "config.json").read_bytes()) == {"model_type": "llama"}


async def test_a_whole_snapshot_of_the_hubs_own_cache_is_used_as_it_is(tmp_path: Path) -> None:
    snapshot = cached(tmp_path, ["config.json", "model.safetensors"])
    answer = await fetch_in_a_process(tmp_path, "http://127.0.0.1:9")
    assert answer == str(snapshot)
    assert parts_in(tmp_path / "fetched") == set()


async def test_a_snapshot_that_lacks_weights_is_not_enough(tmp_path: Path) -> None:
    cached(tmp_path, ["config.json"])
    async with small_hub() as hub:
        folder = Path(await fetch_in_a_process(tmp_path, hub.url))
    assert folder.is_relative_to(tmp_path / "fetched")


@pytest.mark.parametrize("settings", [{}, {"HF_HUB_OFFLINE": "1"}], ids=["away", "offline"])
async def test_a_hub_out_of_reach_says_which_settings_decide(
    settings: dict[str, str], tmp_path: Path
) -> None:
    answer = await fetch_in_a_process(tmp_path, "http://127.0.0.1:9", **settings)
    assert answer.startswith("WeightsNotFoundError")
    assert "HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE" in answer


async def test_a_gated_repository_is_said_so(tmp_path: Path) -> None:
    async with small_hub() as hub:
        hub.is_gated = True
        answer = await fetch_in_a_process(tmp_path, hub.url)
    assert answer.startswith("WeightsNotFoundError")
    assert "403" in answer
