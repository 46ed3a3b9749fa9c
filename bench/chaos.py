"""A chaos run: eight clients chat while Workers are killed, frozen and restarted at random.

Two Head Workers, two in the middle and two Tail Workers of a tiny model in float32; every 10 to
20 seconds one that the Mesh can do without is harmed. Every answer must be exactly the undisturbed
one, and in the end nothing may be left behind.

    python -m bench.chaos [--seconds N] [--seed S]
"""

import argparse
import json
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from tests.mesh.faults.asking import Asking
from tests.mesh.faults.chaos import Chaos, chaos_asks
from tests.mesh.faults.fault_mesh import fault_mesh


def main() -> int:
    """Print what went wrong and, as the last line, the figures as JSON; 1 if anything did."""
    parser = argparse.ArgumentParser(prog="bench.chaos")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    # A benchmark that is told to stop still ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with TemporaryDirectory(prefix="meshnet-chaos-") as folder, fault_mesh(Path(folder)) as mesh:
        expected = {
            ask: Asking(mesh.mesh.tracker_url, ask).start().result() for ask in chaos_asks()
        }
        report = Chaos(mesh, expected, options.seed).run(options.seconds, _tell)
    for complaint in report.complaints:
        print(complaint, file=sys.stderr)
    table = Table("what", "how many")
    for name, figure in {**report.figures(), **report.faults}.items():
        table.add_row(str(name), f"{figure:g}")
    Console(width=60).print(table)
    print(json.dumps(report.figures()))
    return 0 if report.is_well else 1


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
