"""What 32 streaming clients cost the engine: its own CPU time per step, against a bare engine.

Both sides run Decode Steps of the same 32 Sessions on the whole model in one thread, interleaved in
one run: one engine behind a Worker's daemon that streams to 32 HTTP clients, one fed by a single
client of its port that does nothing else. A step's CPU time is read by the engine process itself.
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
from meshnet_worker.engine_port import (
    CloseSession,
    Draw,
    LoadLayers,
    OpenSession,
    RunSegment,
    SessionFailed,
    Stepped,
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
        streaming, bare = asyncio.run(_measure(bench))
    ratio = median([s / b for s, b in zip(streaming, bare, strict=True)])
    table = Table(title=f"engine CPU per step of {CLIENTS} Sessions, float32, one thread")
    for heading in ("one bare client", f"{CLIENTS} streaming clients", "ratio"):
        table.add_column(heading, justify="right")
    table.add_row(
        f"{1000 * median(bare):.1f} ms", f"{1000 * median(streaming):.1f} ms", f"{ratio:.3f}"
    )
    Console().print(table)
    print(json.dumps({"engine_cpu_ratio_32_clients": round(ratio, 3)}))


async def _measure(bench: BenchMesh) -> tuple[list[float], list[float]]:
    streaming: list[float] = []
    bare: list[float] = []
    async with _bare_engine() as engine:
        await _stream_all(bench)
        await engine.decode(NEW_TOKENS)
        for _ in range(ROUNDS):
            before = _full_steps(bench)
            await _stream_all(bench)
            after = _full_steps(bench)
            streaming.append((after[1] - before[1]) / (after[0] - before[0]))
            bare.append(await engine.decode(NEW_TOKENS))
    return streaming, bare


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


def _full_steps(bench: BenchMesh) -> tuple[int, float]:
    full = [row for row in bench.steps() if row.sessions == CLIENTS and not row.has_prefill]
    return sum(row.steps for row in full), sum(row.cpu_seconds for row in full)


@dataclass(slots=True)
class _BareEngine:
    """One engine process with nothing around it but a client that feeds it whole Batches."""

    process: EngineProcess | None = None
    steps: asyncio.Queue[Stepped] = field(default_factory=lambda: asyncio.Queue(CLIENTS))
    next_session: int = 0

    async def decode(self, tokens: int) -> float:
        """Decode with 32 fresh Sessions; returns CPU seconds per full step."""
        sessions = range(self.next_session, self.next_session + CLIENTS)
        self.next_session += CLIENTS
        for session in sessions:
            self._send(OpenSession(session, 0, 0, LAYERS, PROMPT_POSITIONS + tokens))
            self._run(session, 0, tuple(range(PROMPT_POSITIONS)))
        chosen = await self._gather()
        seconds: list[float] = []
        for position in range(PROMPT_POSITIONS, PROMPT_POSITIONS + tokens - 1):
            for session in sessions:
                self._run(session, position, (chosen[session],))
            chosen = await self._gather(seconds)
        for session in sessions:
            self._send(CloseSession(session))
        return sum(seconds) / len(seconds)

    async def _gather(self, seconds: list[float] | None = None) -> dict[int, int]:
        chosen: dict[int, int] = {}
        while len(chosen) < CLIENTS:
            stepped = await self.steps.get()
            chosen |= {r.session: r.token_id for r in stepped.results if r.token_id is not None}
            if seconds is not None and len(stepped.results) == CLIENTS:
                seconds.append(stepped.cpu_seconds)
        return chosen

    def _run(self, session: int, position: int, ids: tuple[int, ...]) -> None:
        draw = Draw(temperature=0.0, top_p=1.0, seed=0)
        self._send(RunSegment(session, (0, 0), position, len(ids), token_ids=ids, draw=draw))

    def _send(self, command: OpenSession | RunSegment | CloseSession) -> None:
        assert self.process is not None
        self.process.send(command)


@asynccontextmanager
async def _bare_engine() -> AsyncIterator[_BareEngine]:
    bare = _BareEngine()

    def on_failed(failed: SessionFailed) -> None:
        raise RuntimeError(failed.reason)

    listener = EngineListener(lambda stepped, _: bare.steps.put_nowait(stepped), on_failed)
    async with running_engine("cpu", listener) as engine:
        listening = asyncio.ensure_future(engine.run())  # noqa: TID251 - ended right below
        engine.set_threads(1)
        command = LoadLayers(
            shard=0, folder=str(ensure_model()), dtype="float32", start=0, end=LAYERS
        )
        await engine.load(command, lambda _done, _total: None)
        bare.process = engine
        yield bare
        listening.cancel()


if __name__ == "__main__":
    main()
