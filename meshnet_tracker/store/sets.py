"""Many rows at once, by one statement whose text does not depend on how many there are."""

import json
from collections.abc import Collection

from sqlalchemy import ARRAY, ColumnElement, String, any_, func, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection


def among(
    connection: AsyncConnection, column: ColumnElement[str], names: Collection[str]
) -> ColumnElement[bool]:
    """Tell whether a column is one of these; the database need not read the statement anew."""
    if connection.dialect.name == "sqlite":
        listed = func.json_each(json.dumps(list(names))).table_valued("value")
        return column.in_(select(listed.c.value))
    return column == any_(literal(list(names), ARRAY(String)))
