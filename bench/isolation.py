"""What 32 streaming clients cost the engine: its own CPU time per step, against a bare engine.

Both sides run Decode Steps of equal Batches on the whole model in one thread, interleaved in one
run: one engine behind a Worker's daemon that streams to 32 HTTP clients, one fed by a single client
of its port that does nothing else. The clients' Sessions settle in one Batch or in a few; the width
that most steps of a round had is the width of the bare engine's Batch in that round. A step's CPU
time is read by the engine process itself.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from openai import AsyncOpenAI
from rich.console import Console
from rich.table import Table

from bench.meshes import MODEL, PROMPT, BenchMesh, bench_mesh, median
from demo.model import ensure_model
from meshnet_common.edge.logs import configure_logging
from meshnet_common.protocol.sampling import Sampling
from meshnet_worker.engine_port import (
    ArmSession,
    CloseSession,
    LoadLayers,
    OpenSession,
    RunSegment,
    SessionFailed,
    SizePool,
    Stepped,
    Tune,
)
from meshnet_worker.engine_process import EngineListener, EngineProcess, running_engine

ROUNDS = 5
CLIENTS = 32
NEW_TOKENS = 24
PROMPT_POSITIONS = 38
"""Positions of the clients' prompt, so that both sides attend over as many."""
LAYERS = 30


def main() -> None:
    """Print the table and, as the last line, the figures as JSON."""
    configure_logging("warning")
    with bench_mesh("float32", workers=1) as bench:
        rounds = asyncio.run(_measure(bench))
    table = Table(title=f"engine CPU per step, {CLIENTS} streaming clients, float32, one thread")
    for heading in ("Sessions in a step", "one bare client", "streaming clients", "ratio"):
        table.add_column(heading, justify="right")
    for one in rounds:
        table.add_row(
            str(one.width),
            f"{1000 * one.bare:.1f} ms",
            f"{1000 * one.streaming:.1f} ms",
            f"{one.ratio:.3f}",
        )
    Console().print(table)
    ratio = median([one.ratio for one in rounds])
    print(json.dumps({"engine_cpu_ratio_32_clients": round(ratio, 3)}))


@dataclass(frozen=True, slots=True)
class _Round:
    """CPU seconds per step of both sides, in Batches of one width."""

    width: int
    streaming: float
    bare: float

    @property
    def ratio(self) -> float:
        return self.streaming / self.bare


async def _measure(bench: BenchMesh) -> list[_Round]:
    rounds: list[_Round] = []
    async with _bare_engine() as engine:
        await _stream_all(bench)
        await engine.decode(CLIENTS, NEW_TOKENS)
        for _ in range(ROUNDS):
            before = _decode_steps(bench)
            await _stream_all(bench)
            width, streaming = _commonest_step(before, _decode_steps(bench))
            rounds.append(_Round(width, streaming, await engine.decode(width, NEW_TOKENS)))
    return rounds


async def _stream_all(bench: BenchMesh) -> None:
    client = AsyncOpenAI(base_url=f"{bench.mesh.tracker_url}/v1", api_key="none", max_retries=0)

    async def stream() -> None:
        answer = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": PROMPT}],
            max_tokens=NEW_TOKENS,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        async for _ in answer:
            pass

    async with client, asyncio.TaskGroup() as tasks:
        for _ in range(CLIENTS):
            tasks.create_task(stream())


def _decode_steps(bench: BenchMesh) -> dict[int, tuple[int, float]]:
    """Steps so far and their CPU seconds, by how many Sessions shared one."""
    rows = [row for row in bench.steps() if not row.has_prefill]
    return {row.sessions: (row.steps, row.cpu_seconds) for row in rows}


def _commonest_step(
    before: dict[int, tuple[int, float]], after: dict[int, tuple[int, float]]
) -> tuple[int, float]:
    """The width of most steps in between, and their CPU seconds per step."""
    deltas = {}
    for width, (steps, seconds) in after.items():
        steps_before, seconds_before = before.get(width, (0, 0.0))
        deltas[width] = (steps - steps_before, seconds - seconds_before)
    width = max(deltas, key=lambda w: deltas[w][0] * w)
    steps, seconds = deltas[width]
    return width, seconds / steps


GREEDY = Sampling(temperature=0.0, top_p=1.0, seed=0)


@dataclass(slots=True)
class _BareEngine:
    """One engine process with nothing around it but a client that feeds it whole Batches."""

    process: EngineProcess | None = None
    steps: asyncio.Queue[Stepped] = field(default_factory=lambda: asyncio.Queue(CLIENTS))
    next_session: int = 0

    async def decode(self, width: int, tokens: int) -> float:
        """Decode with so many fresh Sessions; returns CPU seconds per full step."""
        sessions = range(self.next_session, self.next_session + width)
        self.next_session += width
        for session in sessions:
            self._send(OpenSession(session, 0, 0, LAYERS, PROMPT_POSITIONS + tokens))
            self._send(ArmSession(session, (0, 0), GREEDY))
            self._run(session, 0, tuple(range(PROMPT_POSITIONS)))
        chosen = await self._gather(width, [])
        seconds: list[float] = []
        for position in range(PROMPT_POSITIONS, PROMPT_POSITIONS + tokens - 1):
            for session in sessions:
                self._run(session, position, (chosen[session],))
            chosen = await self._gather(width, seconds)
        for session in sessions:
            self._send(CloseSession(session))
        return sum(seconds) / len(seconds)

    async def _gather(self, width: int, seconds: list[float]) -> dict[int, int]:
        chosen: dict[int, int] = {}
        while len(chosen) < width:
            stepped = await self.steps.get()
            chosen |= {r.session: r.token_id for r in stepped.results if r.token_id is not None}
            if len(stepped.results) == width:
                seconds.append(stepped.cpu_seconds)
        return chosen

    def _run(self, session: int, position: int, ids: tuple[int, ...]) -> None:
        self._send(RunSegment(session, (0, 0), position, len(ids), token_ids=ids, draws=True))

    def _send(self, command: OpenSession | ArmSession | RunSegment | CloseSession) -> None:
        assert self.process is not None
        self.process.send(command)


@asynccontextmanager
async def _bare_engine() -> AsyncIterator[_BareEngine]:
    bare = _BareEngine()

    def on_failed(failed: SessionFailed) -> None:
        raise RuntimeError(failed.reason)

    listener = EngineListener(lambda stepped, _: bare.steps.put_nowait(stepped), on_failed)
    async with running_engine("cpu", listener) as engine:
        engine.send(Tune(1, compiles=False))
        command = LoadLayers(
            shard=0, folder=str(ensure_model()), dtype="float32", start=0, end=LAYERS
        )
        await engine.load(command, lambda _done, _total: None)
        engine.send(SizePool(0, CLIENTS))
        bare.process = engine
        yield bare


if __name__ == "__main__":
    main()
