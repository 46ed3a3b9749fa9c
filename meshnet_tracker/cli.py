"""The command line of the Tracker.

`--help` must answer at once, so each command imports what it needs when it runs.
"""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import click
import platformdirs

PROGRAM = "meshnet-tracker"
DEFAULT_DATABASE = str(platformdirs.user_data_path("meshnet") / "tracker.sqlite3")
QUANTIZATIONS = ("bfloat16", "float16", "float32", "int8", "nf4")
LOG_LEVELS = ("debug", "info", "warning", "error")


def _option(name: str, **settings: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make an option that says its default and can come from MESHNET_TRACKER_<NAME>."""
    variable = f"MESHNET_TRACKER_{name.removeprefix('--').replace('-', '_').upper()}"
    return click.option(
        name, **{"envvar": variable, "show_envvar": True, "show_default": True, **settings}
    )


database_option = _option(
    "--database",
    default=DEFAULT_DATABASE,
    help="SQLite file, or a URL such as postgresql://HOST/NAME, with the Tracker's memory.",
)
log_level_option = _option(
    "--log-level",
    type=click.Choice(LOG_LEVELS),
    default="info",
    help="Least severe event that is logged to stderr.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="meshnet", prog_name=PROGRAM)
def main() -> None:
    """Run a meshnet Tracker.

    It knows every Worker, plans who serves which Layers, and proxies chat requests. It never loads
    weights.
    """


@main.command()
@database_option
@_option("--host", default="127.0.0.1", help="Address to listen on.")
@_option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    help="Port to listen on; 0 picks a free one.",
)
@_option(
    "--ready-file",
    type=click.Path(dir_okay=False, path_type=Path),
    show_default="none",
    help="File to write the base URL into, once the Tracker listens.",
)
@_option(
    "--heartbeat-seconds",
    type=click.FloatRange(0.1, 3600),
    default=4.0,
    help="How often Workers are told to send a heartbeat.",
)
@_option(
    "--lost-after-seconds",
    type=click.FloatRange(0.2, 36000),
    default=12.0,
    help="Silence after which a Worker is lost and its Layers no longer count.",
)
@_option(
    "--rebalance-seconds",
    type=click.FloatRange(1, 3600),
    default=30.0,
    help="Longest time between two planning passes; every change starts one as well.",
)
@_option(
    "--load-deadline-seconds",
    type=click.FloatRange(1, 86400),
    default=600.0,
    help="Time without progress after which a Rebalance Directive expires.",
)
@_option(
    "--headroom-share",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.2,
    help="Share of each Worker's memory that is kept for KV Blocks.",
)
@_option(
    "--headroom-bytes",
    type=click.IntRange(0),
    show_default="the share decides",
    help="Bytes that are kept for KV Blocks on each Worker, instead of a share.",
)
@_option(
    "--hold-seconds",
    type=click.FloatRange(0, 86400),
    default=60.0,
    help="How long a request waits for Layers that are about to be served.",
)
@_option(
    "--connect-retries",
    type=click.IntRange(0, 1000),
    default=8,
    envvar=["MESH_PROXY_CONNECT_RETRIES", "MESHNET_TRACKER_CONNECT_RETRIES"],
    help="How often a request quickly asks the same Head Worker again that could not be reached.",
)
@_option(
    "--connect-backoff-ms",
    type=click.IntRange(1, 60_000),
    default=500,
    envvar=["MESH_PROXY_CONNECT_BACKOFF_MS", "MESHNET_TRACKER_CONNECT_BACKOFF_MS"],
    help="Milliseconds before it does.",
)
@log_level_option
def serve(**options: Any) -> None:
    """Run the Tracker until SIGTERM or Ctrl-C.

    An older SQLite file is migrated first. Ends with status 0 when told to stop, and with 3 when
    the database or the port cannot be used.
    """
    from meshnet_tracker.app import serve as run_tracker
    from meshnet_tracker.planning.snapshot import PlannerPolicy
    from meshnet_tracker.settings import ServeOptions, TrackerSettings
    from meshnet_tracker.tries import ProxyPolicy

    if options["lost_after_seconds"] <= options["heartbeat_seconds"]:
        raise click.UsageError("--lost-after-seconds must be longer than --heartbeat-seconds.")
    settings = TrackerSettings(
        heartbeat_seconds=options["heartbeat_seconds"],
        lost_after_seconds=options["lost_after_seconds"],
        rebalance_seconds=options["rebalance_seconds"],
        policy=PlannerPolicy(
            headroom_share=options["headroom_share"],
            headroom_bytes=options["headroom_bytes"],
            load_deadline_seconds=options["load_deadline_seconds"],
        ),
        proxy=ProxyPolicy(
            connect_retries=options["connect_retries"],
            connect_backoff_seconds=options["connect_backoff_ms"] / 1000,
            hold_seconds=options["hold_seconds"],
        ),
    )
    where = {name: options[name] for name in ("database", "host", "port", "ready_file")}
    _run(run_tracker(ServeOptions(**where, settings=settings)), options["log_level"])


@main.command()
@database_option
@log_level_option
def migrate(database: str, log_level: str) -> None:
    """Bring the database's tables up to this release.

    `serve` does this by itself for a SQLite file. Ends with status 3 when the database is newer
    than this release, or not a meshnet database.
    """
    from meshnet_tracker.registry import migrate_database

    _run(_print_lines(migrate_database(database)), log_level)


@main.group()
def preset() -> None:
    """Manage the models that this Mesh serves.

    These commands work on the database, also while a Tracker runs on it; it follows in a second.
    """


@preset.command("add")
@click.argument("source", metavar="DIR|REPO|URL|GGUF")
@_option("--name", envvar=None, show_default="last part of the source", help="Its public name.")
@click.option(
    "--quantization",
    "quantizations",
    multiple=True,
    type=click.Choice(QUANTIZATIONS),
    show_default="the checkpoint's own dtype",
    help="A Variant to serve; repeatable, the first is the default.",
)
@click.option(
    "--digests-from",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="A copy of what REPO or URL has: Workers check each tensor that they fetch against it.",
)
@database_option
@log_level_option
def add_preset(
    source: str,
    name: str | None,
    quantizations: tuple[str, ...],
    digests_from: Path | None,
    **rest: str,
) -> None:
    """Register a model from a folder, a hub repository or an HTTP mirror of a folder.

    Of a repository and a mirror only texts and headers are read. A folder's weights are hashed
    once, so that Workers can check theirs; none is kept. A GGUF file adds
    its Variant to the model that --name tells, which is then served as NAME-q4k, NAME-q8_0 and so
    on; config and tokenizer stay those of the model. The file must be at the same place on every
    Worker.
    """
    from meshnet_tracker.registry import add_preset as add

    adding = add(rest["database"], source, name, quantizations, digests_from)
    _run(_print_lines(adding), rest["log_level"])


@preset.command("list")
@database_option
@log_level_option
def list_presets(database: str, log_level: str) -> None:
    """List all models, one a line: name, layers, Variants, source."""
    from meshnet_tracker.registry import list_presets as list_all

    _run(_print_lines(list_all(database)), log_level)


@preset.command("show")
@click.argument("name")
@database_option
@log_level_option
def show_preset(name: str, database: str, log_level: str) -> None:
    """Show a model with its sizes for every quantization."""
    from meshnet_tracker.registry import show_preset as show

    _run(_print_lines(show(database, name)), log_level)


@preset.command("remove")
@click.argument("name")
@database_option
@log_level_option
def remove_preset(name: str, database: str, log_level: str) -> None:
    """Remove a model; Workers are told to drop its Shards."""
    from meshnet_tracker.registry import remove_preset as remove

    _run(_print_lines(remove(database, name)), log_level)


@main.group()
def keys() -> None:
    """Manage the keys that sign Route Tickets.

    These commands work on the database, also while a Tracker runs on it; it follows in seconds.
    """


@keys.command("rotate")
@click.option("--revoke", is_flag=True, help="Forget the older keys: one may be in wrong hands.")
@database_option
@log_level_option
def rotate_keys(database: str, log_level: str, revoke: bool) -> None:
    """Sign with a new key from now on.

    Nothing is interrupted: the older keys verify until no Session that they admitted can be renewed
    any more, which is a day after their last ticket. With --revoke such Sessions end at a fault.
    """
    from meshnet_tracker import keyring

    rotate = keyring.revoke_keys if revoke else keyring.rotate_keys
    _run(_print_lines(rotate(database)), log_level)


@keys.command("list")
@database_option
@log_level_option
def list_keys(database: str, log_level: str) -> None:
    """List the keys, newest first: name, age, and until when each one verifies."""
    from meshnet_tracker.keyring import list_keys as list_all

    _run(_print_lines(list_all(database)), log_level)


async def _print_lines(command: Coroutine[Any, Any, list[str]]) -> None:
    for line in await command:
        click.echo(line)


def _run(command: Coroutine[Any, Any, None], log_level: str) -> None:
    from meshnet_common.edge.logs import configure_logging
    from meshnet_common.edge.running import run_main

    configure_logging(log_level)
    run_main(PROGRAM, command)
