"""Placements in one simulator: the planner's, the baselines', and the published ones.

`python -m bench.placement.run [INSTANCE ...]` prints a table per instance and, as its last line,
one JSON object keyed by instance. `python -m bench.placement.run small` does only the small
instances whose placements are all tried.
"""

import json
import sys
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.placement.baselines import BASELINES
from bench.placement.flow import partial_flow, upper_bound, whole_flow
from bench.placement.instances import NAMES, Instance, Placement, bytes_held, load, replicas
from bench.placement.planner import plan_from_nothing
from bench.placement.simulator import Outcome, simulate
from bench.placement.small import small_ratios

PUBLISHED = {
    "q10": {"helix_milp": "best flow"},
    "single24": {"helix_milp": "253 1.53s", "swarm": "142", "balanced_ring": "204 2.25s"},
    "geo24": {"helix_milp": "105 2.28s", "balanced_ring": "24 12.3s"},
    "het42": {"helix_milp": "632 1.09s", "swarm": "457", "balanced_ring": "163 3.52s"},
}
"""Decode tokens per second (and seconds from token to token) in the authors' own simulator."""


@dataclass(frozen=True, slots=True)
class Row:
    """A placement and what it is worth."""

    name: str
    outcome: Outcome
    flow: float
    whole_flow: float
    replicas: int
    bytes_moved: int
    planning_seconds: float | None = None

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "simulated_tokens_per_s": round(self.outcome.tokens_per_second, 1),
            "latency_s": round(self.outcome.latency_seconds, 3) if self.flow else None,
            "flow": round(self.flow, 1),
            "whole_flow": round(self.whole_flow, 1),
            "thinnest_replicas": self.replicas,
            "bytes_moved": self.bytes_moved,
        }
        if self.planning_seconds is not None:
            facts["planning_s"] = round(self.planning_seconds, 3)
        return facts


def main(names: list[str]) -> None:
    """Print the tables and, as the last line, the figures as JSON."""
    facts: dict[str, Any] = {}
    for name in names:
        if name == "small":
            facts[name] = small_ratios()
        else:
            facts[name] = _measure(load(name))
    sys.stdout.write(json.dumps(facts) + "\n")


def _measure(instance: Instance) -> dict[str, Any]:
    planned = plan_from_nothing(instance)
    mine = _row(instance, "planner", planned.placement, planned.bytes_moved, planned.first_seconds)
    baselines = [_row(instance, name, rule(instance)) for name, rule in BASELINES.items()]
    published = [_row(instance, name, runs) for name, runs in instance.placements.items()]
    _show(instance, [mine, *baselines, *published])
    return {
        **mine.facts(),
        "upper_bound": round(upper_bound(instance), 1),
        "planning_passes": planned.passes,
        "planning_all_s": round(planned.seconds, 3),
        "baselines": {row.name: row.facts() for row in baselines},
        "published": {row.name: row.facts() for row in published},
    }


def _row(
    instance: Instance,
    name: str,
    placement: Placement,
    bytes_moved: int | None = None,
    planning_seconds: float | None = None,
) -> Row:
    return Row(
        name,
        simulate(instance, placement),
        partial_flow(instance, placement),
        whole_flow(instance, placement),
        replicas(instance, placement),
        bytes_held(instance, placement.values()) if bytes_moved is None else bytes_moved,
        planning_seconds,
    )


def _show(instance: Instance, rows: list[Row]) -> None:
    bound = upper_bound(instance)
    table = Table(title=f"{instance.name}: no placement can flow more than {bound:.1f} tokens/s")
    headings = ("placement", "tokens/s", "latency s", "hops", "flow T", "whole", "replicas")
    for heading in (*headings, "moved GB", "planning s", "published"):
        table.add_column(heading, justify="left" if heading == "placement" else "right")
    for row in rows:
        table.add_row(
            row.name,
            f"{row.outcome.tokens_per_second:.1f}",
            f"{row.outcome.latency_seconds:.2f}",
            f"{row.outcome.hops:.1f}",
            f"{row.flow:.1f}",
            f"{row.whole_flow:.1f}",
            str(row.replicas),
            f"{row.bytes_moved / 1e9:.0f}",
            "" if row.planning_seconds is None else f"{row.planning_seconds:.3f}",
            PUBLISHED.get(instance.name, {}).get(row.name, ""),
        )
    Console(width=116).print(table)


if __name__ == "__main__":
    main(sys.argv[1:] or [*NAMES, "small"])
