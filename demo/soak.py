"""`make soak`: chats with a mesh for SOAK_SECONDS and watches for wrong answers, leaks and deaths.

Every answer must be exactly transformers' own (the float32 cases of the tests), whatever runs
beside it, and no process may grow once it is warm. Prints a table and, as its last line, one JSON
object.
"""

import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from demo.local_mesh import LocalMesh
from demo.model import ensure_model
from demo.processes import Programs

CLIENTS = 4
WORKERS = 3
MODEL = "soak"
CASES_FILE = Path(__file__).parents[1] / "tests" / "data" / "smollm2_greedy_float32.json"
# The longest prompt would fill the KV headroom of a Budget that is cut to its Shard.
LONGEST_PROMPT_TOKENS = 100
WARM_SHARE = 0.25
GROWTH_LIMIT = 1.15

Memory = dict[str, int]


def main() -> int:
    """Soak for SOAK_SECONDS; returns 1 when an answer was wrong or a process grew."""
    seconds = float(os.environ.get("SOAK_SECONDS", "600"))
    with (
        tempfile.TemporaryDirectory(prefix="meshnet-soak-") as folder,
        Programs(Path(folder)) as programs,
    ):
        mesh = LocalMesh(Path(folder), programs)
        mesh.add_preset(ensure_model(), MODEL, "--quantization", "float32")
        mesh.start_tracker()
        mesh.start_workers(MODEL, WORKERS)
        mesh.wait_until_served(MODEL)
        answers = _chat(mesh, seconds * WARM_SHARE)
        warm = _memory(programs)
        answers += _chat(mesh, seconds * (1 - WARM_SHARE))
        end = _memory(programs)
    return report(answers, warm, end)


def _chat(mesh: LocalMesh, seconds: float) -> Counter[str]:
    deadline = time.monotonic() + seconds
    with ThreadPoolExecutor(CLIENTS) as clients:
        counts = clients.map(lambda first: _one_client(mesh, first, deadline), range(CLIENTS))
        return sum(counts, Counter[str]())


def _one_client(mesh: LocalMesh, first: int, deadline: float) -> Counter[str]:
    counts: Counter[str] = Counter()
    with mesh.client() as client:
        for case in _cases(first):
            if time.monotonic() > deadline:
                return counts
            chunks = client.chat.completions.create(
                model=MODEL,
                messages=case["messages"],
                max_tokens=case["max_tokens"],
                temperature=0,
                stream=True,
            )
            text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
            counts["exact" if text == case["text"] else "wrong"] += 1
    return counts


def _cases(first: int) -> Iterator[dict[str, Any]]:
    cases = json.loads(CASES_FILE.read_text())
    short = [case for case in cases if case["prompt_tokens"] < LONGEST_PROMPT_TOKENS]
    return cycle(short[first:] + short[:first])


def _memory(programs: Programs) -> Memory:
    """Resident bytes of each program together with what it has started."""
    sizes = {}
    for program in programs.running:
        parent = psutil.Process(program.process.pid)
        family = [parent, *parent.children(recursive=True)]
        sizes[program.name] = sum(process.memory_info().rss for process in family)
    return sizes


def report(answers: Counter[str], warm: Memory, end: Memory) -> int:
    """Print what was found; returns 1 for a wrong answer, none at all, or a process that grew."""
    growth = {name: end[name] / warm[name] for name in warm}
    table = Table("program", "warm MiB", "end MiB", "growth")
    for name, ratio in growth.items():
        sizes = (f"{size / 2**20:.0f}" for size in (warm[name], end[name]))
        table.add_row(name, *sizes, f"{ratio:.3f}")
    Console().print(table)
    worst = max(growth.values())
    print(json.dumps({"exact": answers["exact"], "wrong": answers["wrong"], "growth": worst}))
    return int(answers["wrong"] > 0 or answers["exact"] == 0 or worst > GROWTH_LIMIT)


if __name__ == "__main__":
    sys.exit(main())
