"""`plan`: what the planner would order now, and why; nothing is changed."""

from pathlib import Path
from typing import Any

import click

from meshnet_tracker.cli.options import (
    database_option,
    json_option,
    log_level_option,
    policy_of,
    policy_options,
    run_to_end,
)


@click.command()
@click.option("--explain", is_flag=True, help="Also say why, and why no more is done.")
@click.option(
    "--snapshot",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Plan over a snapshot that was saved, with its policy, instead of the database.",
)
@click.option(
    "--save-snapshot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="New file to write what was planned over into.",
)
@json_option
@policy_options
@database_option
@log_level_option
def plan(snapshot: Path | None, save_snapshot: Path | None, **options: Any) -> None:
    """Plan one pass over the Mesh as it is now, and say what would be ordered.

    Nothing is ordered or changed. Give the same headroom as to `serve`.
    """
    from meshnet_tracker import plan_report

    async def take() -> list[str]:
        if snapshot is not None:
            saved = plan_report.read_snapshot(snapshot)
        else:
            saved = await plan_report.take_snapshot(options["database"], policy_of(options))
        written = plan_report.save_snapshot(saved, save_snapshot) if save_snapshot else []
        planned = plan_report.plan_lines(
            saved, explained=options["explain"], as_json=options["as_json"]
        )
        # What is said for people would be no JSON.
        return planned if options["as_json"] else [*planned, *written]

    for line in run_to_end(take(), options["log_level"]):
        click.echo(line)
