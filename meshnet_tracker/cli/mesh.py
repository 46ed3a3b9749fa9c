"""`workers`, `coverage`, `doctor`: how the Mesh is now; `backup`: a copy of what it remembers."""

from pathlib import Path

import click

from meshnet_tracker.cli.options import (
    database_option,
    json_option,
    log_level_option,
    run_printing,
    run_to_end,
)


@click.command()
@json_option
@database_option
@log_level_option
def workers(as_json: bool, database: str, log_level: str) -> None:
    """Show all Workers: state, Layers, speed, load, and when each was last heard of."""
    from meshnet_tracker.mesh_report import show_workers

    run_printing(show_workers(database, as_json=as_json), log_level)


@click.command()
@click.argument("model", required=False)
@json_option
@database_option
@log_level_option
def coverage(model: str | None, as_json: bool, database: str, log_level: str) -> None:
    """Show how well each Variant is served, or only MODEL: replicas, gaps, the thinnest Layer."""
    from meshnet_tracker.mesh_report import show_coverage

    run_printing(show_coverage(database, model, as_json=as_json), log_level)


@click.command()
@json_option
@database_option
@log_level_option
def doctor(as_json: bool, database: str, log_level: str) -> None:
    """Look for what is wrong, and say what to do about it.

    Changes nothing. Ends with status 0 when all is well and 1 when there is a problem.
    """
    from meshnet_tracker.doctor import diagnosis_lines, examine

    diagnosis = run_to_end(examine(database), log_level)
    for line in diagnosis_lines(diagnosis, as_json=as_json):
        click.echo(line)
    if not diagnosis.is_well:
        raise SystemExit(1)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@database_option
@log_level_option
def backup(file: Path, database: str, log_level: str) -> None:
    """Copy a SQLite database into a new FILE, also while Trackers run on it.

    The copy is whole and private to its owner; a file that is there is not overwritten. Of a
    PostgreSQL database make copies with pg_dump.
    """
    from meshnet_tracker.copies import back_up_database

    run_printing(back_up_database(database, file), log_level)
