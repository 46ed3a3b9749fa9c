"""A Mesh of two Head Workers, two in the middle and two Tail Workers, to do harm to.

Every way between its processes leads through a proxy: to each Worker, and from each Worker to the
Tracker. Budgets pin the placement: each Worker has room for a third of the Layers, so whoever comes
back gets what is missing.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from transformers import PretrainedConfig

from demo.local_mesh import LocalMesh
from demo.processes import DeadlineError, Program, Programs, pause_seconds
from meshnet_common.shard_range import ShardRange
from meshnet_worker.step_stats import StepRow
from tests.mesh.faults.operator_drop import open_drops, order_drop
from tests.mesh.faults.proxies import EVERYBODY, FaultProxy, Proxies, free_port
from tests.mesh.faults.seeing import SeenWorker, ready_range, seen_workers
from tests.mesh.harness import engine_of, get, kv_report
from tests.mesh.small_models import llama_config, save_random_model

MODEL = "small"
QUANTIZATION = "float32"
LAYERS = 6
CONTEXT_TOKENS = 1024
PLACES = ("head", "middle", "tail")
NOWHERE = "nowhere"
"""Where a Worker is that was given Layers while a place was empty, and keeps them."""
REPLICAS = 2
KV_BYTES = 32 << 20
CHUNK_TOKENS = "32"
"""Small, so that a prompt of a few hundred tokens has a Prefill that a fault can hit."""
LOADED_SECONDS = 90.0
LEFT_SECONDS = 45.0
MISPLACED_SECONDS = 8.0


@dataclass(slots=True)
class FaultWorker:
    """One Worker and the two proxies that are its network."""

    name: str
    worker_id: str
    port: int
    front: FaultProxy
    """What the others dial."""
    to_tracker: FaultProxy
    program: Program

    @property
    def url(self) -> str:
        """Where it listens itself, whatever its network does."""
        return f"http://127.0.0.1:{self.port}"


class _Steps(msgspec.Struct):
    steps: list[StepRow]


class FaultMesh:
    """The Mesh, what can go wrong with it, and how to wait until it is well again."""

    def __init__(self, folder: Path, programs: Programs, proxies: Proxies) -> None:
        self.mesh = LocalMesh(folder, programs)
        self.proxies = proxies
        self.workers: list[FaultWorker] = []
        self.model = folder / "model"
        self._folder = folder
        self._budget = 0

    def start(self) -> None:
        """Start everything; the model comes last, so that all Workers are placed at once."""
        tracker = self.mesh.start_tracker("--headroom-bytes", str(KV_BYTES))
        tracker_port = int(tracker.url.rsplit(":", 1)[1])
        self._budget = _third(self.model) + KV_BYTES
        for number in range(1, len(PLACES) * REPLICAS + 1):
            port = free_port()
            front, to_tracker = self.proxies.open(port), self.proxies.open(tracker_port)
            name = f"worker-{number}"
            options = self._options(name, port, front, to_tracker, number <= REPLICAS)
            program = self.mesh.start_worker(name, self._budget, options)
            worker = FaultWorker(name, f"w-{number}", port, front, to_tracker, program)
            self.workers.append(worker)
        self.mesh.programs.wait_until_ready(*(w.program for w in self.workers), seconds=120)
        self.mesh.add_preset(self.model, MODEL, "--quantization", QUANTIZATION)
        self.wait_until_whole()

    # What can go wrong

    def kill(self, worker: FaultWorker) -> None:
        """End the daemon and its engine at once."""
        self.mesh.programs.kill(worker.program)
        worker.front.refuse()

    def kill_engine(self, worker: FaultWorker) -> None:
        engine_of(worker.program).kill()

    def freeze(self, worker: FaultWorker) -> None:
        os.killpg(worker.program.process.pid, signal.SIGSTOP)

    def thaw(self, worker: FaultWorker) -> None:
        os.killpg(worker.program.process.pid, signal.SIGCONT)

    def lose_network(self, worker: FaultWorker) -> None:
        """Let nothing reach this Worker, and nothing that it sends reach anybody."""
        for other in self.workers:
            other.front.silence(EVERYBODY if other is worker else worker.worker_id)
        worker.to_tracker.silence(EVERYBODY)

    def find_network(self, worker: FaultWorker) -> None:
        for other in self.workers:
            other.front.heal(EVERYBODY if other is worker else worker.worker_id)
        worker.to_tracker.heal(EVERYBODY)

    def cut_links(self, worker: FaultWorker) -> None:
        """Reset every connection of this Worker; new ones may be opened at once."""
        for other in self.workers:
            other.front.cut(EVERYBODY if other is worker else worker.worker_id)

    def order_drop(self, worker: FaultWorker) -> None:
        """Have the Tracker tell this Worker to drop its Shard, though that may open a gap."""
        shard_range = self.range_of(worker)
        if shard_range is not None:
            database = self._folder / "tracker.sqlite3"
            order_drop(database, worker.worker_id, (MODEL, QUANTIZATION), shard_range)

    def revive(self, worker: FaultWorker) -> None:
        """Start a Worker again that has ended, with the same state folder and at the same port."""
        worker.front.listen()
        is_head = self.workers.index(worker) < REPLICAS
        options = self._options(worker.name, worker.port, worker.front, worker.to_tracker, is_head)
        worker.program = self.mesh.start_worker(worker.name, self._budget, options)

    def let_leave(self, workers: Sequence[FaultWorker]) -> None:
        """Ask Workers to leave and wait until they have ended and nobody counts on them."""
        for worker in workers:
            self.mesh.programs.let_end(worker.program, signal.SIGTERM)
        for worker in workers:
            worker.program.process.wait(LEFT_SECONDS)
            self.kill(worker)
        gone = {worker.worker_id for worker in workers}
        self.wait_for(
            lambda: all(one.worker_id not in gone or one.state == "lost" for one in self.seen()),
            LEFT_SECONDS,
            f"{gone} left",
        )

    # What is there

    def seen(self) -> list[SeenWorker]:
        return seen_workers(self.mesh.tracker_url)

    def holders(self) -> dict[str, list[FaultWorker]]:
        """The Workers that are ready to serve, by their place on a Route, or nowhere."""
        found: dict[str, list[FaultWorker]] = {place: [] for place in (*PLACES, NOWHERE)}
        for seen in self.seen():
            shard_range = ready_range(seen)
            if shard_range is not None:
                found[place_of(shard_range)].append(self.worker(seen.worker_id))
        return found

    def worker(self, worker_id: str) -> FaultWorker:
        return next(worker for worker in self.workers if worker.worker_id == worker_id)

    def range_of(self, worker: FaultWorker) -> ShardRange | None:
        """Which Layers the Tracker counts on it for."""
        seen = (one for one in self.seen() if one.worker_id == worker.worker_id)
        return next((ready_range(one) for one in seen), None)

    def on_route(self, place: str) -> FaultWorker:
        """Whom the Tracker would choose for this place now."""
        return self.worker(self.mesh.route(MODEL).hops[PLACES.index(place)].worker_id)

    def steps(self, worker: FaultWorker, *, decode: bool) -> int:
        """How many engine steps of one kind this Worker has counted; none if it is away."""
        try:
            rows = msgspec.json.decode(get(f"{worker.url}/v1/steps").body, type=_Steps).steps
        except OSError:
            return 0
        return sum(row.steps for row in rows if row.has_prefill is not decode)

    def held(self) -> dict[str, str]:
        """What is still in use, by Worker; empty when every counter is back to zero."""
        return {w.name: text for w in self.workers if (text := _held(w))}

    # Until it is well again

    def wait_until_whole(self, places: Sequence[str] = PLACES) -> None:
        """Wait until these places have all their replicas ready, and every other one at least.

        Who came back while there was traffic elsewhere may have been put there: it is moved.
        """
        move_at = time.monotonic() + MISPLACED_SECONDS

        def is_whole() -> bool:
            nonlocal move_at
            by_place = self.holders()
            surplus = by_place.pop(NOWHERE)
            surplus += [worker for workers in by_place.values() for worker in workers[REPLICAS:]]
            if surplus and time.monotonic() > move_at:
                self.order_drop(surplus[0])
                move_at += MISPLACED_SECONDS
            is_covered = all(by_place.values())
            return is_covered and all(len(by_place[place]) >= REPLICAS for place in places)

        self.wait_for(is_whole, LOADED_SECONDS, f"every place is served, twice in {places}")

    def wait_until_dropped(self) -> None:
        """Wait until every Worker has done with the directives to drop a Shard."""
        database = self._folder / "tracker.sqlite3"
        self.wait_for(lambda: not open_drops(database), LOADED_SECONDS, "all is dropped")

    def wait_for(self, condition: Callable[[], object], seconds: float, what: str) -> None:
        """Poll until it is true; raises DeadlineError with what the Tracker sees."""
        began = time.monotonic()
        while not condition():
            waited = time.monotonic() - began
            if waited > seconds:
                raise DeadlineError(f"{what}: not within {seconds:g} s; {self.seen()}")
            time.sleep(pause_seconds(waited))

    def _options(
        self, name: str, port: int, front: FaultProxy, to_tracker: FaultProxy, is_head: bool
    ) -> tuple[str, ...]:
        state = self._folder / name
        state.mkdir(exist_ok=True)
        (state / "worker-0.id").write_text(f"w-{name.removeprefix('worker-')}\n")
        return (
            *("--tracker", to_tracker.url, "--port", str(port), "--advertise-url", front.url),
            *("--threads", "1", "--no-compile", "--chunk-tokens", CHUNK_TOKENS),
            *("--weights-dir", str(self._folder / "weights")),
            *(("--tracker-mode",) if is_head else ()),
        )


@contextmanager
def fault_mesh(folder: Path) -> Iterator[FaultMesh]:
    """Run a Mesh with all its files in this folder; every process ends with the block."""
    with Proxies() as proxies, Programs(folder) as programs:
        mesh = FaultMesh(folder, programs, proxies)
        save_random_model(fault_config(), mesh.model)
        mesh.start()
        try:
            yield mesh
        finally:
            for worker in mesh.workers:
                if not worker.program.has_ended():
                    mesh.thaw(worker)


def fault_config() -> PretrainedConfig:
    """A small Llama whose Layers divide by three and whose context takes long prompts."""
    config = llama_config()
    config.num_hidden_layers = LAYERS
    config.max_position_embeddings = CONTEXT_TOKENS
    return config


def place_range(place: str) -> ShardRange:
    """The Layers that belong there."""
    size = LAYERS // len(PLACES)
    return ShardRange(PLACES.index(place) * size, (PLACES.index(place) + 1) * size)


def place_of(shard_range: ShardRange) -> str:
    """Name the place where exactly these Layers belong."""
    return next((place for place in PLACES if place_range(place) == shard_range), NOWHERE)


def _third(model: Path) -> int:
    """Room for a third of the Layers and either end of the model, but for no Layer more."""
    return round((model / "model.safetensors").stat().st_size * 0.38)


def _held(worker: FaultWorker) -> str:
    """What a Worker still holds, in words; nothing if it has ended."""
    try:
        report = kv_report(worker.program)
    except OSError:
        return ""
    used = sum(pool.used for pool in report.pools)
    if report.sessions == report.waiting == used == 0:
        return ""
    return f"{report.sessions} sessions, {report.waiting} waiting, {used} blocks"
