"""Every client that people have, unmodified, against one running Mesh with real models.

One row per client and version. What failed, and what was left out and why, stands below. Only what
may not fail is a failure of the whole. The programs and their environments are those of
tests/clients.
"""

import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from demo.local_mesh import LocalMesh
from demo.processes import Programs
from meshnet_common.edge.logs import configure_logging
from tests.clients.environments import NodeMissingError
from tests.clients.matrix import CLIENTS, CheckLine, Client, ClientMesh, client_mesh


@dataclass(frozen=True, slots=True)
class Row:
    """What came of one client's checks."""

    client: Client
    lines: Sequence[CheckLine]

    def count(self, outcome: str) -> int:
        return sum(line.outcome == outcome for line in self.lines)


def main() -> int:
    """Print the table and, as the last line, the figures as JSON; returns the exit status."""
    configure_logging("warning")
    # A benchmark that is told to stop still ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with (
        TemporaryDirectory(prefix="meshnet-bench-") as folder,
        Programs(Path(folder)) as programs,
        client_mesh(LocalMesh(Path(folder), programs)) as running,
    ):
        rows = [Row(client, _lines(running, client)) for client in CLIENTS]
    table = Table(title="clients")
    for heading in ("client", "version", "passed", "failed", "skipped"):
        table.add_column(heading, justify="left" if heading == "client" else "right")
    for row in rows:
        counts = (str(row.count(outcome)) for outcome in ("passed", "failed", "skipped"))
        table.add_row(row.client.name, row.client.version, *counts)
    Console().print(table)
    for row in rows:
        for line in row.lines:
            if line.outcome != "passed":
                print(f"{row.client.label}: {line.check}: {line.outcome}: {line.why}")
    figures = {
        row.client.label: {outcome: row.count(outcome) for outcome in ("passed", "failed")}
        for row in rows
    }
    print(json.dumps(figures))
    failed = (line for row in rows for line in row.lines if line.outcome == "failed")
    return int(not all(line.may_fail for line in failed))


def _lines(running: ClientMesh, client: Client) -> Sequence[CheckLine]:
    try:
        return running.run(client)
    except NodeMissingError as error:
        return [CheckLine("its program", "skipped", str(error.__doc__))]


if __name__ == "__main__":
    sys.exit(main())
