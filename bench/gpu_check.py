"""Is a CUDA device exact, and how fast is it? Minutes, on a machine that has one.

Runs the real model on the CPU in float32 and on the device in float32 and bfloat16, in the same
runner, with CUDA graphs and without: greedy ids must be equal in float32, the device must pass its
registration, the paged kernel its proof against attention Session by Session, and graphs theirs
against plain passes. Prints decode tokens/s at 1, 8 and 32 Sessions with graphs and without,
prefill tokens/s, and what graphs take of the memory; the last line is one JSON object.
"""

import json
import sys
import time
from collections.abc import Sequence

import torch
from rich.console import Console
from rich.table import Table

from demo.model import ensure_model
from meshnet_common.protocol.sampling import Sampling
from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine import varlen
from meshnet_worker.engine.attention import prove_kernel
from meshnet_worker.engine.device import block_positions, probe
from meshnet_worker.engine.graph_proof import is_proved, prove_graphs
from meshnet_worker.engine.runner import BatchRunner
from meshnet_worker.engine.shard import Shard, ShardSource
from meshnet_worker.engine_port import (
    ArmSession,
    CloseSession,
    Event,
    Noted,
    OpenSession,
    RunSegment,
    SessionFailed,
    SizePool,
    Stepped,
)

PROMPT = tuple(range(100, 400))
NEW_TOKENS = 64
WIDTHS = (1, 8, 32)
PREFILL_TOKENS = 4096
CHUNK_TOKENS = 512
GREEDY = Sampling(temperature=0.0, top_p=1.0, seed=0)


class _Side:
    """The whole model on one device, fed as the daemon feeds it.

    `replays` lets it use graphs, where the device has proved them; notes say why it does not.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, *, replays: bool = False) -> None:
        self.notes: list[Noted] = []
        self.replayed_steps = 0
        source = ShardSource(str(ensure_model()), dtype, device, compiles=replays)
        self.shard = Shard(source, self.notes.append)
        self.layers = ShardRange(0, self.shard.layer_count)
        list(self.shard.load(self.layers))
        self._chosen: dict[int, list[int]] = {}
        self._runner = BatchRunner({0: self.shard}, device, self._hear)
        blocks = -(-(PREFILL_TOKENS + NEW_TOKENS) // block_positions(device)) * WIDTHS[-1]
        self._runner.size_pool(SizePool(0, blocks))

    def answers(self, prompts: Sequence[Sequence[int]]) -> tuple[list[list[int]], float]:
        """Greedy answers of all prompts in one Batch, and seconds per step."""
        self._chosen = {session: [] for session in range(len(prompts))}
        self.replayed_steps = 0
        for session, prompt in enumerate(prompts):
            self._open(session, len(prompt) + NEW_TOKENS)
            self._prefill(session, prompt)
        started = time.perf_counter()
        for step in range(NEW_TOKENS - 1):
            for session, prompt in enumerate(prompts):
                self._feed(session, len(prompt) + step, (self._chosen[session][-1],), draws=True)
            self._drain()
        seconds = (time.perf_counter() - started) / (NEW_TOKENS - 1)
        for session in self._chosen:
            self._runner.change(CloseSession(session))
        return list(self._chosen.values()), seconds

    def prefill_seconds(self) -> float:
        """Seconds of one long prompt."""
        self._chosen = {0: []}
        self._open(0, PREFILL_TOKENS)
        started = time.perf_counter()
        self._prefill(0, [100 + place % 1000 for place in range(PREFILL_TOKENS)])
        seconds = time.perf_counter() - started
        self._runner.change(CloseSession(0))
        return seconds

    def _open(self, session: int, positions: int) -> None:
        self._runner.change(OpenSession(session, 0, 0, self.layers.end, positions))
        self._runner.change(ArmSession(session, (0, 0), GREEDY))

    def _prefill(self, session: int, prompt: Sequence[int]) -> None:
        for start in range(0, len(prompt), CHUNK_TOKENS):
            ids = tuple(prompt[start : start + CHUNK_TOKENS])
            is_last = start + len(ids) == len(prompt)
            self._feed(session, start, ids, draws=is_last)
        self._drain()

    def _feed(self, session: int, start: int, ids: tuple[int, ...], *, draws: bool) -> None:
        command = RunSegment(session, (0, 0), start, len(ids), token_ids=ids, draws=draws)
        self._runner.add(command, b"")

    def _drain(self) -> None:
        while self._runner.has_work:
            self._runner.step()

    def _hear(self, event: Event, _payload: bytes) -> None:
        match event:
            case SessionFailed(reason=reason):
                raise RuntimeError(reason)
            case Stepped(results=results, was_compiled=was_replayed):
                self.replayed_steps += was_replayed
                for result in results:
                    if result.token_id is not None:
                        self._chosen[result.session].append(result.token_id)
            case _:
                pass


def main() -> int:
    """Print the table and, as the last line, the figures as JSON; 1 where an answer differs."""
    if not torch.cuda.is_available():
        print(json.dumps({"device": None, "reason": "torch sees no CUDA device"}))
        return 0
    device = torch.device("cuda", 0)
    probe(device)
    prove_kernel(device)
    notes: list[Noted] = []
    prove_graphs(device, notes.append)
    query = torch.zeros((1, 1, 1, 64), dtype=torch.bfloat16, device=device)
    exactness = _float32_figures(device)
    figures: dict[str, object] = {
        "device": torch.cuda.get_device_name(device),
        "paged_kernel": varlen.is_able(query, query),
        "graphs_proved": is_proved(device) or str(notes),
        **exactness,
        **_bfloat16_figures(device),
    }
    table = Table("figure", "value", title="one CUDA device, the whole model")
    for name, value in figures.items():
        table.add_row(name, str(value))
    Console().print(table)
    print(json.dumps(figures))
    is_right = all(exactness.values()) and figures["paged_kernel"] and is_proved(device)
    return 0 if is_right else 1


def _prompts(count: int) -> list[Sequence[int]]:
    return [PROMPT[: 20 + 7 * session] for session in range(count)]


def _float32_figures(device: torch.device) -> dict[str, object]:
    prompts = _prompts(8)
    expected, _ = _Side(torch.device("cpu"), torch.float32).answers(prompts)
    exact, _ = _Side(device, torch.float32).answers(prompts)
    side = _Side(device, torch.float32, replays=True)
    # Twice: the first time, graphs are captured half-way.
    replayed = [side.answers(prompts)[0] for _ in range(2)]
    return {
        "float32_ids_equal_the_cpus": expected == exact,
        "float32_ids_equal_the_cpus_with_graphs": replayed == [expected] * 2,
        "float32_steps_replayed": side.replayed_steps,
    }


def _bfloat16_figures(device: torch.device) -> dict[str, object]:
    figures: dict[str, object] = {}
    plain, replaying = (_Side(device, torch.bfloat16, replays=on) for on in (False, True))
    for width in WIDTHS:
        prompts = _prompts(width)
        alone = [plain.answers([prompt])[0][0] for prompt in prompts[:4]]
        for side, name in ((plain, "plain"), (replaying, "graphs")):
            side.answers(prompts)
            together, seconds = side.answers(prompts)
            figures[f"decode_tokens_per_second_{width}_{name}"] = round(width / seconds, 1)
            same = sum(a == b for a, b in zip(alone, together, strict=False))
            figures[f"bfloat16_answers_equal_alone_{width}_{name}"] = f"{same} of {len(alone)}"
        figures[f"steps_replayed_{width}"] = f"{replaying.replayed_steps} of {NEW_TOKENS - 1}"
    figures["graphs_given_up"] = str(replaying.notes)
    figures["graphs_mib"] = _graphs_bytes(replaying, device) >> 20
    plain.prefill_seconds()
    figures["prefill_tokens_per_second"] = round(PREFILL_TOKENS / plain.prefill_seconds())
    return figures


def _graphs_bytes(side: _Side, device: torch.device) -> int:
    """What the device has back once a side has forgotten its graphs."""
    torch.cuda.empty_cache()
    with_graphs, _ = torch.cuda.mem_get_info(device)
    side.shard.forget_compiled()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0] - with_graphs


if __name__ == "__main__":
    sys.exit(main())
