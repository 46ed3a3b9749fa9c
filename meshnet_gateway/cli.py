"""The command line of the Gateway; what it runs is imported only when it runs."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from meshnet_common.edge.importing import lasting_imports
from meshnet_common.edge.ranges import FiniteRange

if TYPE_CHECKING:
    from meshnet_gateway.config.reading import Sources

PROGRAM = "meshnet-gateway"
DEFAULT_MESH = "http://127.0.0.1:8080"

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(package_name="meshnet")
def main() -> None:
    """Serve one OpenAI-compatible endpoint in front of meshes and other servers."""


def _base_urls(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...]:
    for value in values:
        if not value.startswith(("http://", "https://")):
            raise click.BadParameter(f"{value!r} is no URL; write it like {DEFAULT_MESH}")
    return values


def _settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options: tuple[Decorator, ...] = (
        click.option(
            "--config",
            envvar="MESHNET_GATEWAY_CONFIG",
            show_envvar=True,
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="TOML or JSON with models, Endpoints, Peers and budgets (docs/gateway.md).",
        ),
        click.option(
            "--mesh",
            "meshes",
            multiple=True,
            callback=_base_urls,
            show_default=f"{DEFAULT_MESH}, if no model has Endpoints",
            metavar="URL",
            help="Base URL of a Mesh's Tracker; give it once for each Mesh. Also MESHNET_MESHES, "
            "separated by blanks.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@main.command()
@_settings_options
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option(
    "--port", default=8090, type=click.IntRange(0, 65535), help="Port; 0 picks a free one."
)
@click.option(
    "--ready-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the Gateway's URL into this file once it listens.",
)
@click.option(
    "--log-level",
    default="info",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Least important events that are logged.",
)
def serve(config: Path | None, meshes: tuple[str, ...], **options: Any) -> None:
    """Run the Gateway until SIGTERM or Ctrl-C; SIGHUP reads its settings again.

    Ends with status 3 when the settings or the port cannot be used.
    """
    # One that comes before the settings are read is heeded by reading them.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with lasting_imports():
        from meshnet_common.edge.logs import configure_logging
        from meshnet_common.edge.running import run_main
        from meshnet_common.edge.serving import write_ready_file
        from meshnet_gateway import app
        from meshnet_gateway.config.reading import read_settings

    def on_ready(url: str) -> None:
        if options["ready_file"] is not None:
            write_ready_file(options["ready_file"], url)

    sources = _sources(config, meshes)
    configure_logging(options["log_level"])
    gateway = app.serve(lambda: read_settings(sources), options["host"], options["port"], on_ready)
    run_main(PROGRAM, gateway)


@main.command("check-config")
@_settings_options
def check_config(config: Path | None, meshes: tuple[str, ...]) -> None:
    """Print every setting and where it is from, or every fault.

    The environment counts as it would for `serve`. Ends with status 3 when there is a fault.
    """
    from meshnet_gateway.config.checking import doubts_of
    from meshnet_gateway.config.faults import SettingsError
    from meshnet_gateway.config.reading import read_all
    from meshnet_gateway.config.showing import show_settings

    try:
        reading = read_all(_sources(config, meshes))
    except SettingsError as error:
        click.echo(f"{PROGRAM}: {error}", err=True)
        raise SystemExit(error.exit_status) from error
    for line in show_settings(reading.entry, reading.settings, reading.file):
        click.echo(f"{line.name} = {line.value}  # {line.origin}")
    for doubt in doubts_of(reading.settings):
        click.echo(f"{PROGRAM}: {doubt}", err=True)


@main.command()
@_settings_options
@click.option("--model", required=True, help="Public name of the model that is measured.")
@click.option(
    "--endpoint", metavar="URL", help="Which of the model's Endpoints, if it has several."
)
@click.option(
    "--level-seconds",
    default=10.0,
    type=FiniteRange(0.1, 3600),
    help="How long each concurrency is offered.",
)
@click.option(
    "--most", default=256, type=click.IntRange(1, 4096), help="Highest concurrency that is tried."
)
@click.option(
    "--answer-tokens",
    default=64,
    type=click.IntRange(1, 4096),
    help="Longest answer of a chat model.",
)
@click.option(
    "--plot",
    # Opened before anything is measured, which takes minutes.
    type=click.File("w", encoding="utf-8", lazy=False),
    metavar="FILE",
    help="Draw the curves into this SVG file.",
)
def calibrate(config: Path | None, meshes: tuple[str, ...], **options: Any) -> None:
    """Find how many requests an Endpoint takes before they only wait for each other.

    Loads the Endpoint as far as it goes, so choose a quiet hour. Prints a table of what each
    concurrency came to, and the line for the settings. Ends with status 3 when the settings cannot
    be used or name no such Endpoint.
    """
    from rich.console import Console

    from meshnet_common.edge.running import run_main
    from meshnet_gateway.calibration import running
    from meshnet_gateway.config.reading import read_settings

    async def run() -> None:
        settings = read_settings(_sources(config, meshes))
        await running.calibrate(settings, running.CalibrateOptions(**options), Console())

    run_main(PROGRAM, run())


def _sources(config: Path | None, meshes: tuple[str, ...]) -> "Sources":
    from meshnet_gateway.config.reading import Sources

    flags = {"meshes": ("--mesh", meshes)} if meshes else {}
    return Sources(config, os.environ, flags)


if __name__ == "__main__":
    main()
