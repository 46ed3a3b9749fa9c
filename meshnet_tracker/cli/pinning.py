"""`pin` and `drain`: what an Operator decides about single Workers."""

import click

from meshnet_tracker.cli.options import (
    database_option,
    json_option,
    log_level_option,
    run_printing,
)


@click.group()
def pin() -> None:
    """Manage pins: which Worker serves exactly which Layers.

    These commands work on the database, also while Trackers run on it; they follow in a second.
    """


@pin.command("add")
@click.argument("worker")
@click.argument("model")
@click.argument("start", type=click.IntRange(0))
@click.argument("end", type=click.IntRange(1))
@database_option
@log_level_option
def add_pin(worker: str, model: str, start: int, end: int, **rest: str) -> None:
    """Let WORKER serve Layers START to END (excluded) of MODEL, and nothing else.

    What it must drop it drops once others serve it. A pin that does not fit is ignored;
    `meshnet-tracker plan --explain` says why.
    """
    from meshnet_tracker import pinning

    run_printing(pinning.add_pin(rest["database"], worker, model, start, end), rest["log_level"])


@pin.command("remove")
@click.argument("worker")
@database_option
@log_level_option
def remove_pin(worker: str, database: str, log_level: str) -> None:
    """Let the planner decide again what WORKER serves."""
    from meshnet_tracker import pinning

    run_printing(pinning.remove_pin(database, worker), log_level)


@pin.command("list")
@json_option
@database_option
@log_level_option
def list_pins(as_json: bool, database: str, log_level: str) -> None:
    """List all pins."""
    from meshnet_tracker import pinning

    run_printing(pinning.list_pins(database, as_json=as_json), log_level)


@click.group()
def drain() -> None:
    """Empty Workers from here: their Layers are loaded elsewhere first.

    These commands work on the database, also while Trackers run on it; they follow in a second.
    """


@drain.command("add")
@click.argument("worker")
@database_option
@log_level_option
def add_drain(worker: str, database: str, log_level: str) -> None:
    """Let others load what WORKER serves, then have it drop that, and give it nothing new."""
    from meshnet_tracker import pinning

    run_printing(pinning.add_drain(database, worker), log_level)


@drain.command("remove")
@click.argument("worker")
@database_option
@log_level_option
def remove_drain(worker: str, database: str, log_level: str) -> None:
    """Let WORKER serve again."""
    from meshnet_tracker import pinning

    run_printing(pinning.remove_drain(database, worker), log_level)


@drain.command("list")
@json_option
@database_option
@log_level_option
def list_drains(as_json: bool, database: str, log_level: str) -> None:
    """List the Workers that are to be empty."""
    from meshnet_tracker import pinning

    run_printing(pinning.list_drains(database, as_json=as_json), log_level)
