"""The command line of the Gateway; what it runs is imported only when it runs."""

from pathlib import Path

import click

DEFAULT_MESH = "http://127.0.0.1:8080"


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(package_name="meshnet")
def main() -> None:
    """Serve one OpenAI-compatible endpoint in front of one or several meshes."""


def _base_urls(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...]:
    for value in values:
        if not value.startswith(("http://", "https://")):
            raise click.BadParameter(f"{value!r} is no URL; write it like {DEFAULT_MESH}")
    return tuple(dict.fromkeys(value.rstrip("/") for value in values))


@main.command()
@click.option(
    "--mesh",
    "meshes",
    multiple=True,
    default=(DEFAULT_MESH,),
    callback=_base_urls,
    envvar="MESHNET_MESHES",
    show_envvar=True,
    metavar="URL",
    help="Base URL of a Mesh's Tracker; give it once for each Mesh (in the environment: separated "
    "by blanks).",
)
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
def serve(
    meshes: tuple[str, ...], host: str, port: int, ready_file: Path | None, log_level: str
) -> None:
    """Run the Gateway until SIGTERM or Ctrl-C."""
    from meshnet_common.edge.logs import configure_logging
    from meshnet_common.edge.running import run_main
    from meshnet_common.edge.serving import write_ready_file
    from meshnet_gateway import app

    def on_ready(url: str) -> None:
        if ready_file is not None:
            write_ready_file(ready_file, url)

    configure_logging(log_level)
    run_main("meshnet-gateway", app.serve(meshes, host, port, on_ready))


if __name__ == "__main__":
    main()
