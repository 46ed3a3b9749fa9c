"""`key`: the API keys of those who ask."""

from typing import Any

import click

from meshnet_common.edge.ranges import FiniteRange
from meshnet_tracker.cli.options import (
    database_option,
    json_option,
    log_level_option,
    run_printing,
)

MOST_DAYS = 36_500


@click.group()
def key() -> None:
    """Manage API keys: who may ask, for which models, and how often.

    These commands work on the database, also while Trackers run on it; they follow in a second.
    Without `serve --require-api-key` people may also ask without any.
    """


@key.command("create")
@click.argument("name")
@click.option("--model", "models", multiple=True, help="A public name that it opens; all if none.")
@click.option("--requests-per-minute", type=click.IntRange(1, 1_000_000), help="Its rate limit.")
@click.option(
    "--tokens-per-minute",
    type=click.IntRange(1, 1_000_000_000),
    help="Tokens of prompts and answers together; what one passes it by is made up for.",
)
@click.option(
    "--days", type=FiniteRange(0, MOST_DAYS, min_open=True), help="After so long it expires."
)
@database_option
@log_level_option
def create_key(
    name: str,
    models: tuple[str, ...],
    database: str,
    log_level: str,
    **limits: Any,
) -> None:
    """Make a key for NAME and print it, once: only its hash is kept.

    NAME is for people, of up to 64 letters, digits and . _ @ - ; it is never given again.
    """
    from meshnet_tracker import api_keys

    made = api_keys.create_key(database, name, models, api_keys.KeyLimits(**limits))
    run_printing(made, log_level)


@key.command("revoke")
@click.argument("name")
@database_option
@log_level_option
def revoke_key(name: str, database: str, log_level: str) -> None:
    """Let the key of NAME open nothing any more, for good."""
    from meshnet_tracker import api_keys

    run_printing(api_keys.revoke_key(database, name), log_level)


@key.command("list")
@json_option
@database_option
@log_level_option
def list_keys(as_json: bool, database: str, log_level: str) -> None:
    """List all keys, the revoked ones included; none is shown whole."""
    from meshnet_tracker import api_keys

    run_printing(api_keys.list_keys(database, as_json=as_json), log_level)
