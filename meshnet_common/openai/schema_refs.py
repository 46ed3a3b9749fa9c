"""Where a JSON schema's `$ref` leads, and which schemas are parts of which; pure.

Only schemas of the same document are reached, by a JSON pointer such as `#/$defs/name`.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

from meshnet_common.openai.errors import ApiError

Schema = dict[str, Any]
Place = tuple[str, ...]
Refuse = Callable[[Place, str], ApiError]

IN_ONE = ("additionalProperties", "items")
"""Keywords that hold a schema."""
IN_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
"""Keywords that hold a list of schemas."""
IN_MAPS = ("$defs", "definitions", "patternProperties", "properties")
"""Keywords that hold schemas by name."""

_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")


class Targets:
    """The schemas of one document, and those that references lead to."""

    def __init__(self) -> None:
        self._schemas: dict[int, Schema] = {}
        self._references: list[tuple[str, Place]] = []
        self._reached: dict[str, Schema] = {}

    def __iter__(self) -> Iterator[Schema]:
        return iter(self._schemas.values())

    def add(self, schema: Schema) -> None:
        """Let references lead to a schema, which may still grow."""
        self._schemas[id(schema)] = schema

    def note(self, reference: object, place: Place, refuse: Refuse) -> str:
        """Remember a reference; raises ApiError for one that leaves the document."""
        if not isinstance(reference, str):
            raise refuse(place, "must be a reference such as `#/$defs/name`")
        if reference != "#" and not reference.startswith("#/"):
            raise refuse(place, "must lead to a place in this schema, such as `#/$defs/name`")
        self._references.append((reference, place))
        return reference

    def check(self, root: Schema, refuse: Refuse) -> None:
        """Follow all references; raises ApiError for one that leads to no schema."""
        for reference, place in self._references:
            found = self._find(root, reference)
            if found is None:
                raise refuse(place, "does not lead to a schema that is an object")
            self._reached[reference] = found

    def of(self, schema: Schema) -> Schema | None:
        """The schema that another one's reference leads to."""
        reference = schema.get("$ref")
        return None if reference is None else self._reached[reference]

    def _find(self, root: Schema, reference: str) -> Schema | None:
        found: object = root
        for part in unquote(reference).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict):
                found = found.get(name)
            elif isinstance(found, list) and _INDEX.fullmatch(name):
                found = found[int(name)] if int(name) < len(found) else None
            else:
                return None
        # What has the same shape within an enumeration is no schema.
        return self._schemas.get(id(found))


def inner_schemas(schema: Schema) -> Iterator[Schema]:
    """The schemas that one holds, wherever they are, without those that it refers to."""
    for keyword in IN_ONE:
        yield from _only_objects([schema.get(keyword)])
    for keyword in IN_LISTS:
        yield from _only_objects(schema.get(keyword, ()))
    for keyword in IN_MAPS:
        yield from _only_objects(schema.get(keyword, {}).values())


def _only_objects(schemas: Any) -> Iterator[Schema]:
    for schema in schemas:
        if isinstance(schema, dict):
            yield schema
