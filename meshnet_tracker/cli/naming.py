"""`alias`: public names that stand for models, to cut over to a new version and back."""

import click

from meshnet_tracker.cli.options import (
    database_option,
    json_option,
    log_level_option,
    run_printing,
)


@click.group()
def alias() -> None:
    """Manage public names that stand for models: cut-over and rollback.

    These commands work on the database, also while Trackers run on it; they follow in a second.
    """


@alias.command("set")
@click.argument("name")
@click.argument("model")
@click.option("--force", is_flag=True, help="Also while Layers of MODEL have no ready Worker.")
@database_option
@log_level_option
def set_alias(name: str, model: str, force: bool, database: str, log_level: str) -> None:
    """Let MODEL answer requests for NAME from now on: a cut-over.

    Requests that run already end where they began. NAME may be a model's own name; what answered
    before is kept for `alias rollback`.
    """
    from meshnet_tracker import naming

    run_printing(naming.set_alias(database, name, model, force=force), log_level)


@alias.command("rollback")
@click.argument("name")
@database_option
@log_level_option
def roll_back_alias(name: str, database: str, log_level: str) -> None:
    """Let NAME be answered by what answered it before the last cut-over."""
    from meshnet_tracker import naming

    run_printing(naming.roll_back_alias(database, name), log_level)


@alias.command("remove")
@click.argument("name")
@database_option
@log_level_option
def remove_alias(name: str, database: str, log_level: str) -> None:
    """Forget the alias NAME."""
    from meshnet_tracker import naming

    run_printing(naming.remove_alias(database, name), log_level)


@alias.command("list")
@json_option
@database_option
@log_level_option
def list_aliases(as_json: bool, database: str, log_level: str) -> None:
    """List all aliases: what answers now, and what did before."""
    from meshnet_tracker import naming

    run_printing(naming.list_aliases(database, as_json=as_json), log_level)
