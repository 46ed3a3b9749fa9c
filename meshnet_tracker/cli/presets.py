"""`preset`: the models that this Mesh serves."""

from pathlib import Path
from typing import Any

import click

from meshnet_tracker.cli.options import database_option, log_level_option, option, run_printing

QUANTIZATIONS = ("bfloat16", "float16", "float32", "int8", "nf4")


@click.group()
def preset() -> None:
    """Manage the models that this Mesh serves.

    These commands work on the database, also while a Tracker runs on it; it follows in a second.
    """


@preset.command("add")
@click.argument("source", metavar="DIR|REPO|URL|GGUF")
@option("--name", envvar=None, show_default="last part of the source", help="Its public name.")
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
@click.option(
    "--canary",
    is_flag=True,
    help="Not listed, and asked for under /canary/v1 only, until an alias stands for it.",
)
@database_option
@log_level_option
def add_preset(
    source: str,
    name: str | None,
    quantizations: tuple[str, ...],
    digests_from: Path | None,
    **rest: Any,
) -> None:
    """Register a model from a folder, a hub repository or an HTTP mirror of a folder.

    Of a repository and a mirror only texts and headers are read. A folder's weights are hashed
    once, so that Workers can check theirs; none is kept. A GGUF file adds
    its Variant to the model that --name tells, which is then served as NAME-q4k, NAME-q8_0 and so
    on; config and tokenizer stay those of the model. The file must be at the same place on every
    Worker.
    """
    from meshnet_tracker.registry import add_preset as add

    adding = add(rest["database"], source, name, quantizations, digests_from, canary=rest["canary"])
    run_printing(adding, rest["log_level"])


@preset.command("list")
@database_option
@log_level_option
def list_presets(database: str, log_level: str) -> None:
    """List all models, one a line: name, layers, Variants, source."""
    from meshnet_tracker.registry import list_presets as list_all

    run_printing(list_all(database), log_level)


@preset.command("show")
@click.argument("name")
@database_option
@log_level_option
def show_preset(name: str, database: str, log_level: str) -> None:
    """Show a model with its sizes for every quantization."""
    from meshnet_tracker.registry import show_preset as show

    run_printing(show(database, name), log_level)


@preset.command("remove")
@click.argument("name")
@database_option
@log_level_option
def remove_preset(name: str, database: str, log_level: str) -> None:
    """Remove a model; Workers are told to drop its Shards."""
    from meshnet_tracker.registry import remove_preset as remove

    run_printing(remove(database, name), log_level)
