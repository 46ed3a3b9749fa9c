"""`serve` and `migrate`: run a Tracker, and prepare its database."""

import os
from pathlib import Path
from typing import Any

import click

from meshnet_common.edge.importing import lasting_imports
from meshnet_common.edge.ranges import FiniteRange
from meshnet_tracker.cli.options import (
    database_option,
    log_format_option,
    log_level_option,
    option,
    policy_of,
    policy_options,
    run,
    run_printing,
)

TOKEN_VARIABLE = "MESHNET_TRACKER_{}_TOKEN"  # noqa: S105 - the name of a variable
LEAST_TOKEN_CHARACTERS = 16


@click.command()
@database_option
@option("--host", default="127.0.0.1", help="Address to listen on.")
@option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    help="Port to listen on; 0 picks a free one.",
)
@option(
    "--ready-file",
    type=click.Path(dir_okay=False, path_type=Path),
    show_default="none",
    help="File to write the base URL into, once the Tracker listens.",
)
@option(
    "--heartbeat-seconds",
    type=FiniteRange(0.1, 3600),
    default=4.0,
    help="How often Workers are told to send a heartbeat.",
)
@option(
    "--lost-after-seconds",
    type=FiniteRange(0.2, 36000),
    default=12.0,
    help="Silence after which a Worker is lost and its Layers no longer count.",
)
@option(
    "--rebalance-seconds",
    type=FiniteRange(1, 3600),
    default=30.0,
    help="Longest time between two planning passes; every change starts one as well.",
)
@policy_options
@option(
    "--hold-seconds",
    type=FiniteRange(0, 86400),
    default=60.0,
    help="How long a request waits for Layers that are about to be served.",
)
@option(
    "--ack-after-ms",
    type=click.IntRange(0, 3_600_000),
    default=1000,
    help="Milliseconds after which a client that streams gets its headers, whatever it waits for; "
    "an error has a status of its own before, and is an event after.",
)
@option(
    "--keep-alive-seconds",
    type=FiniteRange(0.1, 3600),
    default=10.0,
    help="Longest silence in a stream before a comment shows that it lives.",
)
@option(
    "--connect-retries",
    type=click.IntRange(0, 1000),
    default=8,
    envvar=["MESH_PROXY_CONNECT_RETRIES", "MESHNET_TRACKER_CONNECT_RETRIES"],
    help="How often a request quickly asks the same Head Worker again that could not be reached.",
)
@option(
    "--connect-backoff-ms",
    type=click.IntRange(1, 60_000),
    default=500,
    envvar=["MESH_PROXY_CONNECT_BACKOFF_MS", "MESHNET_TRACKER_CONNECT_BACKOFF_MS"],
    help="Milliseconds before it does.",
)
@option(
    "--admin-token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    show_default="no admin API",
    help="File with the token that opens /admin; or give the token itself in "
    "MESHNET_TRACKER_ADMIN_TOKEN.",
)
@option(
    "--metrics-token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    show_default="everybody may read /metrics",
    help="File with the token that opens /metrics; or give the token itself in "
    "MESHNET_TRACKER_METRICS_TOKEN.",
)
@option(
    "--require-api-key/--no-require-api-key",
    default=False,
    help="Answer nobody without a key of `meshnet-tracker key create`.",
)
@log_format_option
@log_level_option
def serve(**options: Any) -> None:
    """Run the Tracker until SIGTERM or Ctrl-C.

    An older SQLite file is migrated first. Ends with status 0 when told to stop, and with 3 when
    the database or the port cannot be used.
    """
    with lasting_imports():
        from meshnet_tracker.app import serve as run_tracker
        from meshnet_tracker.settings import ServeOptions, TrackerSettings
        from meshnet_tracker.tries import ProxyPolicy

    if options["lost_after_seconds"] <= options["heartbeat_seconds"]:
        raise click.UsageError("--lost-after-seconds must be longer than --heartbeat-seconds.")
    settings = TrackerSettings(
        admin_token_sha256=_token_sha256("admin", options["admin_token_file"]),
        metrics_token_sha256=_token_sha256("metrics", options["metrics_token_file"]),
        requires_api_key=options["require_api_key"],
        heartbeat_seconds=options["heartbeat_seconds"],
        lost_after_seconds=options["lost_after_seconds"],
        rebalance_seconds=options["rebalance_seconds"],
        policy=policy_of(options),
        proxy=ProxyPolicy(
            connect_retries=options["connect_retries"],
            connect_backoff_seconds=options["connect_backoff_ms"] / 1000,
            hold_seconds=options["hold_seconds"],
            ack_after_seconds=options["ack_after_ms"] / 1000,
            keep_alive_seconds=options["keep_alive_seconds"],
        ),
    )
    where = {name: options[name] for name in ("database", "host", "port", "ready_file")}
    tracker = run_tracker(ServeOptions(**where, settings=settings))
    run(tracker, options["log_level"], options["log_format"])


def _token_sha256(what: str, file: Path | None) -> str:
    from meshnet_tracker.tokens import token_sha256

    variable = TOKEN_VARIABLE.format(what.upper())
    token = (_read_token(what, file) if file else os.environ.get(variable, "")).strip()
    if not token and file is None:
        return ""
    if len(token) < LEAST_TOKEN_CHARACTERS:
        raise click.UsageError(
            f"The {what} token needs at least {LEAST_TOKEN_CHARACTERS} characters; "
            "`openssl rand -hex 32` makes a good one."
        )
    return token_sha256(token)


def _read_token(what: str, file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise click.UsageError(
            f"The {what} token cannot be read from {file}: {why}. "
            f"`openssl rand -hex 32 > {file}` makes a good one."
        ) from error


@click.command()
@database_option
@log_level_option
def migrate(database: str, log_level: str) -> None:
    """Bring the database's tables up to this release.

    `serve` does this by itself for a SQLite file. Ends with status 3 when the database is newer
    than this release, or not a meshnet database.
    """
    from meshnet_tracker.registry import migrate_database

    run_printing(migrate_database(database), log_level)
