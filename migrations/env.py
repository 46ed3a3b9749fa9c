"""Run by Alembic for every command; the caller hands over an open connection.

There is no alembic.ini: `meshnet-tracker migrate` and the store drive Alembic by code.
"""

from alembic import context

from meshnet_tracker.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite cannot alter a column in place.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
