"""Brings the database's schema to this release's, by Alembic and by nothing else.

Alembic runs by code on the store's own connection. Its revisions lie in `migrations/`, beside the
packages in a checkout as in an installed wheel.
"""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect

import meshnet_tracker
from meshnet_tracker.store.errors import (
    ForeignDatabaseError,
    NewerSchemaError,
    OlderSchemaError,
    SchemaError,
)


def head_revision() -> str:
    """Name the schema revision that this release works on."""
    revision = _scripts().get_current_head()
    if revision is None:
        raise SchemaError(f"No revisions were found in {_migrations_folder()}; reinstall meshnet.")
    return revision


def check_schema(connection: Connection) -> None:
    """Raise NewerSchemaError, OlderSchemaError or ForeignDatabaseError unless all is current."""
    revision = _known_revision(connection)
    if revision != head_revision():
        raise OlderSchemaError(
            f"Its schema is at revision {revision or 'none'}, this release needs "
            f"{head_revision()}. Run `meshnet-tracker migrate` with the same --database."
        )


def upgrade(connection: Connection) -> tuple[str, str] | None:
    """Migrate inside the caller's transaction; answer (from, to), None if all was current.

    Raises NewerSchemaError and ForeignDatabaseError, having changed nothing.
    """
    revision = _known_revision(connection)
    if revision == head_revision():
        return None
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    return revision or "empty", head_revision()


def _known_revision(connection: Connection) -> str | None:
    revision = MigrationContext.configure(connection).get_current_revision()
    if revision is None and inspect(connection).get_table_names():
        raise ForeignDatabaseError(
            "It has tables, but none of them tells a meshnet schema revision. "
            "Name another --database, or move that one away."
        )
    known = {script.revision for script in _scripts().walk_revisions()}
    if revision is not None and revision not in known:
        raise NewerSchemaError(
            f"Its schema is at revision {revision}, this release knows up to {head_revision()} and "
            "would damage it. Install the newer release, or name another --database."
        )
    return revision


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_migrations_folder()).replace("%", "%%"))
    return config


def _migrations_folder() -> Path:
    # By place, not by import: a folder of that name in the working directory must not win.
    return Path(meshnet_tracker.__file__).parent.parent / "migrations"
