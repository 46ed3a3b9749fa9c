"""A Tracker and Workers on loopback, as real processes; every file in one folder.

It drives the same commands and endpoints that an Operator or a Volunteer uses, and nothing else.
The demo and the mesh tests share it.
"""

import subprocess
import urllib.request
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from openai import OpenAI

from demo.processes import READY_SECONDS, Program, Programs, command
from meshnet_common.presets import ModelPreset
from meshnet_common.protocol.messages import CoverageRow, PresetAnswer, RouteAnswer
from meshnet_common.shard_range import ShardRange

COVERAGE_SECONDS = 120.0
ANSWER_SECONDS = 10.0
HEADROOM_SHARE = 0.2


class LocalMesh:
    """A Mesh on this machine; its programs end when the `Programs` that it was given end."""

    def __init__(self, folder: Path, programs: Programs, database: str | None = None) -> None:
        self.programs = programs
        self._folder = folder
        self._database = database or str(folder / "tracker.sqlite3")
        self._tracker: Program | None = None

    @property
    def tracker_url(self) -> str:
        if self._tracker is None:
            raise RuntimeError("the Tracker is not started")
        return self._tracker.url

    def add_preset(self, source: Path | str, name: str, *options: str) -> None:
        """Enter a model into the Tracker's registry; raises CalledProcessError."""
        self._on_database("preset", "add", str(source), "--name", name, *options)

    def remove_preset(self, name: str) -> None:
        """Let Workers drop a model again."""
        self._on_database("preset", "remove", name)

    def create_key(self, name: str) -> str:
        """Make an API key; raises CalledProcessError."""
        return self._on_database("key", "create", name).splitlines()[0]

    def set_alias(self, name: str, model: str) -> None:
        """Let a model answer for another name too; raises CalledProcessError."""
        self._on_database("alias", "set", name, model)

    def _on_database(self, *arguments: str) -> str:
        ended = subprocess.run(
            (command("meshnet-tracker"), *arguments, "--database", self._database),
            check=True,
            capture_output=True,
        )
        return ended.stdout.decode()

    def start_tracker(self, *options: str, name: str = "tracker") -> Program:
        """Start a Tracker; what is started and asked from now on goes to the newest one."""
        arguments = (command("meshnet-tracker"), "serve", "--port", "0", *options)
        where = ("--database", self._database)
        self._tracker = self.programs.start(name, (*arguments, *where))
        self.programs.wait_until_ready(self._tracker)
        return self._tracker

    def start_gateway(self, *options: str) -> Program:
        arguments = (command("meshnet-gateway"), "serve", "--port", "0")
        gateway = self.programs.start("gateway", (*arguments, "--mesh", self.tracker_url, *options))
        self.programs.wait_until_ready(gateway)
        return gateway

    def start_worker(self, name: str, budget_bytes: int, options: Sequence[str] = ()) -> Program:
        """Start a Worker that keeps its identity under this name, without waiting for it."""
        arguments = (
            *(command("meshnet-worker"), "start", "--tracker", self.tracker_url, "--port", "0"),
            *("--vram", str(budget_bytes), "--state-dir", str(self._folder / name)),
        )
        return self.programs.start(name, (*arguments, *options))

    def start_workers(self, model: str, count: int, options: Sequence[str] = ()) -> list[Program]:
        """Start Workers whose Budgets force an equal split of this preset's Layers.

        One after the other, each as soon as the one before has its orders: the first then gets the
        embeddings and the last the output head, which their Budgets are cut for.
        """
        programs = []
        for number, budget in enumerate(split_budgets(self.preset(model), count), 1):
            program = self.start_worker(f"worker-{number}", budget, options)
            what = f"{program.name} is told what to load"
            self.programs.wait_for(partial(self.has_orders, program), READY_SECONDS, what)
            programs.append(program)
        return programs

    def has_orders(self, worker: Program) -> bool:
        """Whether the Tracker has told this Worker to load something, or it has it already."""
        if not worker.ready_file.exists():
            return False
        answer = msgspec.json.decode(_get(f"{self.tracker_url}/v1/workers"), type=_Workers)
        return any(w.url == worker.url and (w.shards or w.directives) for w in answer.workers)

    def preset(self, name: str) -> ModelPreset:
        answer = _get(f"{self.tracker_url}/v1/presets/{name}")
        return msgspec.json.decode(answer, type=PresetAnswer).preset

    def coverage(self, model: str) -> tuple[CoverageRow, ...]:
        answer = _get(f"{self.tracker_url}/v1/coverage/{model}")
        return msgspec.json.decode(answer, type=tuple[CoverageRow, ...])

    def route(self, model: str) -> RouteAnswer:
        return msgspec.json.decode(_get(f"{self.tracker_url}/v1/route/{model}"), type=RouteAnswer)

    def wait_until_served(self, model: str, seconds: float = COVERAGE_SECONDS) -> None:
        """Wait until some ready Worker covers every Layer of this model."""
        what = f"every layer of {model} is covered"
        self.programs.wait_for(lambda: not gaps(self.coverage(model)), seconds, what)

    def client(self, url: str | None = None) -> OpenAI:
        """The official client, pointed at the Tracker, or at another of our programs."""
        base_url = f"{url or self.tracker_url}/v1"
        return OpenAI(base_url=base_url, api_key="not-needed", max_retries=0)


def gaps(coverage: Sequence[CoverageRow]) -> list[ShardRange]:
    """Name the runs of Layers that nobody serves."""
    return [ShardRange(row.start_layer, row.end_layer) for row in coverage if not row.worker_count]


def covered_layers(coverage: Sequence[CoverageRow]) -> int:
    """Count the Layers that somebody serves."""
    return sum(row.end_layer - row.start_layer for row in coverage if row.worker_count)


def split_budgets(preset: ModelPreset, count: int) -> list[int]:
    """Compute the Budgets, in bytes, of Workers that hold equal runs of Layers and no more."""
    bounds = [preset.layer_count * number // count for number in range(count + 1)]
    return [budget_for(preset, ShardRange(start, end)) for start, end in pairwise(bounds)]


def budget_for(preset: ModelPreset, shard_range: ShardRange) -> int:
    """The smallest Budget, in bytes, that holds this range beside the Tracker's KV headroom."""
    variant = preset.variants[0]
    return round(variant.range_bytes(shard_range) / (1 - HEADROOM_SHARE)) + 1


class _Worker(msgspec.Struct):
    url: str
    shards: list[Any]
    directives: list[Any]


class _Workers(msgspec.Struct):
    """What the demo needs of `GET /v1/workers`."""

    workers: list[_Worker]


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
        body: bytes = answer.read()
        return body
