"""A hub of a few routes on loopback; the client runs in a process of its own, as it does for real,
since it reads its settings when it is imported and knows no event loop."""

import asyncio
import hashlib
import json
import os
import re
import sys
from pathlib import Path

import pytest
from aiohttp import web

from tests.tracker.presets.checkpoints import (
    LLAMA_CONFIG,
    llama_tensors,
    safetensors_bytes,
)
from tests.tracker.served import served

READ = """
import sys
from meshnet_common.errors import MeshnetError
from meshnet_tracker.presets.hub import read_repository
try:
    found = read_repository(sys.argv[1])
    print(found.source, len(found.tensors), found.config["hidden_size"], sep="|")
    print(found.manifest.revision)
    for file in found.manifest.files:
        print(file.name, file.size_bytes, file.sha256)
except MeshnetError as error:
    print(f"{type(error).__name__}: {error}")
"""

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": json.dumps(LLAMA_CONFIG).encode(),
    "model.safetensors": safetensors_bytes(llama_tensors()),
}


class SmallHub:
    """Serves one repository, `org/tiny`, with the files it is given."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.ranges: list[str] = []
        self.app = web.Application()
        self.app.router.add_get("/org/tiny/resolve/{revision}/{name}", self._file)
        self.app.router.add_get("/api/models/org/tiny{tail:.*}", self._info)

    async def _file(self, request: web.Request) -> web.Response:
        content = self.files.get(request.match_info["name"])
        if content is None:
            headers = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}
            return web.Response(status=404, headers=headers)
        headers = {"ETag": '"1"', "X-Repo-Commit": COMMIT}
        wanted = request.http_range
        if wanted.start is not None or wanted.stop is not None:
            self.ranges.append(request.headers["Range"])
            return web.Response(status=206, body=content[wanted], headers=headers)
        return web.Response(body=content, headers=headers)

    async def _info(self, request: web.Request) -> web.Response:
        siblings = [self._sibling(name) for name in self.files]
        tree = [{"type": "file", "path": n, "size": 1, "oid": "1"} for n in self.files]
        if "/tree/" in request.match_info["tail"]:
            return web.json_response(tree)
        return web.json_response({"id": "org/tiny", "sha": COMMIT, "siblings": siblings})

    def _sibling(self, name: str) -> dict[str, object]:
        content = self.files[name]
        known: dict[str, object] = {"rfilename": name, "size": len(content)}
        if name.endswith(".safetensors"):
            digest = hashlib.sha256(content).hexdigest()
            known["lfs"] = {"size": len(content), "sha256": digest, "pointerSize": 130}
        return known


async def read(endpoint: str, repository: str, home: Path, offline: str = "0") -> str:
    settings = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": offline}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", READ, repository),
        env={**os.environ, **settings, "HF_HUB_DISABLE_TELEMETRY": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return output.decode().strip()


async def ask(files: dict[str, bytes], repository: str, home: Path) -> tuple[str, SmallHub]:
    hub = SmallHub(files)
    async with served(hub.app) as url:
        return await read(url, repository, home), hub


async def test_a_repository_is_read_by_ranges(tmp_path: Path) -> None:
    answer, hub = await ask(FILES, "org/tiny", tmp_path)
    first, revision, *files = answer.splitlines()
    assert (first, revision) == ("org/tiny|8|8", COMMIT)
    assert {line.split()[0]: line.split()[1:] for line in files} == {
        name: [str(len(content)), hashlib.sha256(content).hexdigest()]
        for name, content in FILES.items()
    }
    assert hub.ranges == ["bytes=0-100000"]


@pytest.mark.parametrize(
    ("files", "repository", "expected"),
    [
        (FILES, "org/other", "NoCheckpointError: .*org/other"),
        ({"model.safetensors": b""}, "org/tiny", r"NoCheckpointError: .*no config\.json"),
        (
            {"config.json": b"{}", "pytorch_model.bin": b"x"},
            "org/tiny",
            "NoCheckpointError: .*pickle",
        ),
        (
            {"config.json": b"{}", "model.safetensors": b"\xff" * 99},
            "org/tiny",
            "HeaderError: .*org/tiny",
        ),
    ],
)
async def test_a_repository_that_cannot_be_served_is_refused(
    files: dict[str, bytes], repository: str, expected: str, tmp_path: Path
) -> None:
    answer, _ = await ask(files, repository, tmp_path)

    assert re.match(expected, answer), answer


async def test_a_hub_out_of_reach_is_said_so(tmp_path: Path) -> None:
    answer = await read("http://127.0.0.1:9", "org/tiny", tmp_path, offline="1")
    assert answer.startswith("NoCheckpointError: ")
    assert "HF_ENDPOINT" in answer
