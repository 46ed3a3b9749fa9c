"""Throws bytes at all that reads what strangers send, led by coverage.

Each reader is fuzzed by libFuzzer in a process of its own for a share of the time. It may give a
value or its one error; any other exception, a reader that hangs, or one that takes more memory
than it may, is a crash.
"""

import argparse
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.fuzz_seeds import SEEDS

MEMORY_MIB = 1024
HANGING_SECONDS = 10
START_SECONDS = 2.0
"""So long a fuzzer takes to start."""
RUNS = re.compile(r"stat::number_of_executed_units:\s+(\d+)")


def main() -> None:
    """Print what each reader went through and, as the last line, the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    seconds = parser.parse_args().seconds
    if importlib.util.find_spec("atheris") is None:
        sys.exit("atheris is not installed; it has wheels for Linux on x86-64 only.")
    began = time.monotonic()
    outcomes = {}
    for done, name in enumerate(SEEDS):
        left = began + seconds - time.monotonic()
        share = left / (len(SEEDS) - done) - START_SECONDS
        outcomes[name] = _fuzz(name, max(1, round(share)))
    for name, (runs, crashes) in outcomes.items():
        print(f"{name:10} {runs:12,} runs, {crashes} crashes")
    figures = {
        "seconds": round(time.monotonic() - began, 1),
        "runs": sum(runs for runs, _ in outcomes.values()),
        "crashes": sum(crashes for _, crashes in outcomes.values()),
    }
    print(json.dumps(figures))
    sys.exit(1 if figures["crashes"] else 0)


def _fuzz(name: str, seconds: int) -> tuple[int, int]:
    """How often a reader was run, and whether it crashed; what it said then is printed."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder, "corpus")
        corpus.mkdir()
        for number, seed in enumerate(SEEDS[name]):
            Path(corpus, f"seed-{number}").write_bytes(seed)
        command = (
            *(sys.executable, "-m", "bench.fuzz_one", name, str(corpus)),
            f"-max_total_time={seconds}",
            f"-rss_limit_mb={MEMORY_MIB}",
            f"-timeout={HANGING_SECONDS}",
            f"-artifact_prefix={folder}/",
            "-print_final_stats=1",
            "-max_len=65536",
        )
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    said = ended.stdout + ended.stderr
    runs = sum(int(count) for count in RUNS.findall(said))
    if ended.returncode:
        print(said[-4000:], file=sys.stderr)
    return runs, int(ended.returncode != 0)


if __name__ == "__main__":
    main()
