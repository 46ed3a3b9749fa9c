"""Says what a calibration found: a table of its levels, and the line for the settings."""

import json
from collections.abc import Sequence
from typing import assert_never

from rich.table import Table

from meshnet_gateway.calibration.knee import Finding, Knee, Level, NotReached, Unusable
from meshnet_gateway.config.settings import Kind

UNITS = {"chat": "tokens/s", "embedding": "inputs/s"}


def level_table(levels: Sequence[Level], finding: Finding, kind: Kind) -> Table:
    """Make the table of all levels, the knee's marked."""
    table = Table(title="calibration")
    for heading in ("in flight", UNITS[kind], "p50 s", "p95 s", "waiting", "failed", ""):
        table.add_column(heading, justify="right")
    for level in sorted(levels, key=lambda level: level.concurrency):
        is_knee = isinstance(finding, Knee) and finding.concurrency == level.concurrency
        table.add_row(
            str(level.concurrency),
            f"{level.throughput:.1f}",
            f"{level.p50_seconds:.3f}",
            f"{level.p95_seconds:.3f}",
            "?" if level.waiting is None else str(level.waiting),
            str(level.failures),
            "knee" if is_knee else "",
            style="bold" if is_knee else None,
        )
    return table


def conclusion(finding: Finding, gpu_group: str) -> str:
    """Say what was found, and what to write for it."""
    match finding:
        case Knee(concurrency):
            return (
                f"The knee is at {concurrency} in flight. In the settings:\n"
                f"gpu_concurrency_budgets = {{ {json.dumps(gpu_group)} = {concurrency} }}\n"
                f"GPU_CONCURRENCY_BUDGETS='{json.dumps({gpu_group: concurrency})}'"
            )
        case NotReached(concurrency):
            return (
                f"There is no knee up to {concurrency} in flight: try again with a higher --most, "
                "or set no budget."
            )
        case Unusable():
            return "Not even one request at a time was answered: look at the Endpoint first."
        case _:
            assert_never(finding)
