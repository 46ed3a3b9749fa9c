"""What all commands share: options that say their default, and the way from a command to its end.

`--help` must answer at once, so each command imports what it needs when it runs.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click
import platformdirs

from meshnet_common.edge.ranges import FiniteRange

if TYPE_CHECKING:
    from meshnet_tracker.planning.snapshot import PlannerPolicy

PROGRAM = "meshnet-tracker"
DEFAULT_DATABASE = str(platformdirs.user_data_path("meshnet") / "tracker.sqlite3")
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("console", "json")

_Result = TypeVar("_Result")

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def option(name: str, *others: str, **settings: Any) -> Decorator:
    """Make an option that says its default and can come from MESHNET_TRACKER_<NAME>."""
    variable = f"MESHNET_TRACKER_{name.removeprefix('--').replace('-', '_').upper()}"
    return click.option(
        name, *others, **{"envvar": variable, "show_envvar": True, "show_default": True, **settings}
    )


database_option = option(
    "--database",
    "--database-url",
    "database",
    envvar=["MESHNET_TRACKER_DATABASE", "MESHNET_TRACKER_DATABASE_URL"],
    default=DEFAULT_DATABASE,
    help="SQLite file, or a URL such as postgresql+asyncpg://HOST/NAME: the Tracker's memory.",
)
log_level_option = option(
    "--log-level",
    type=click.Choice(LOG_LEVELS),
    default="info",
    help="Least severe event that is logged to stderr.",
)


log_format_option = option(
    "--log-format",
    type=click.Choice(LOG_FORMATS),
    default="console",
    help="One line for people, or one JSON object, for each event.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON for machines instead of a table."
)


_POLICY_OPTIONS = (
    option(
        "--load-deadline-seconds",
        type=FiniteRange(1, 86400),
        default=600.0,
        help="Time without progress after which a Rebalance Directive expires.",
    ),
    option(
        "--headroom-share",
        type=FiniteRange(0, 1, max_open=True),
        default=0.2,
        help="Share of each Worker's memory that is kept for KV Blocks.",
    ),
    option(
        "--headroom-bytes",
        type=click.IntRange(0),
        show_default="the share decides",
        help="Bytes that are kept for KV Blocks on each Worker, instead of a share.",
    ),
)


def policy_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what the planner goes by, the same for whoever plans."""
    for add in reversed(_POLICY_OPTIONS):
        command = add(command)
    return command


def policy_of(options: Mapping[str, Any]) -> "PlannerPolicy":
    """Make the policy that these options tell."""
    from meshnet_tracker.planning.snapshot import PlannerPolicy

    return PlannerPolicy(
        headroom_share=options["headroom_share"],
        headroom_bytes=options["headroom_bytes"],
        load_deadline_seconds=options["load_deadline_seconds"],
    )


def run(command: Coroutine[Any, Any, None], log_level: str, log_format: str = "console") -> None:
    """Run a command to its end; raises SystemExit with the status of what went wrong."""
    from meshnet_common.edge.logs import configure_logging
    from meshnet_common.edge.running import run_main

    configure_logging(log_level, form=log_format)
    run_main(PROGRAM, command)


def run_to_end(command: Coroutine[Any, Any, _Result], log_level: str) -> _Result:
    """Run a command to its end and answer what it does; a stop signal is an end with status 0."""
    results: list[_Result] = []

    async def keep() -> None:
        results.append(await command)

    run(keep(), log_level)
    if not results:
        raise SystemExit(0)
    return results[0]


def run_printing(command: Coroutine[Any, Any, list[str]], log_level: str) -> None:
    """Run a command to its end and print the lines that it answers."""
    for line in run_to_end(command, log_level):
        click.echo(line)
