"""Many rows at once, by one statement whose text does not depend on how many there are.

Building a statement takes several times as long as running it, so that those which run many times a
second are built once, around `among_names`.
"""

import json
from collections.abc import Collection

from sqlalchemy import ARRAY, ColumnElement, String, any_, bindparam, func, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection

SQLITE = "sqlite"
NAMES = "listed_names"
"""The parameter that takes what `listed` makes."""


def among_names(dialect: str, column: ColumnElement[str]) -> ColumnElement[bool]:
    """Tell whether a column is one of the names that the parameter `NAMES` lists."""
    if dialect == SQLITE:
        each = func.json_each(bindparam(NAMES, type_=String)).table_valued("value")
        return column.in_(select(each.c.value))
    return column == any_(bindparam(NAMES, type_=ARRAY(String)))


def listed(connection: AsyncConnection, names: Collection[str]) -> str | list[str]:
    """Make of names what the parameter takes."""
    return json.dumps(list(names)) if connection.dialect.name == SQLITE else list(names)


def among(
    connection: AsyncConnection, column: ColumnElement[str], names: Collection[str]
) -> ColumnElement[bool]:
    """Tell whether a column is one of these; the database need not read the statement anew."""
    if connection.dialect.name == SQLITE:
        each = func.json_each(json.dumps(list(names))).table_valued("value")
        return column.in_(select(each.c.value))
    return column == any_(literal(list(names), ARRAY(String)))
