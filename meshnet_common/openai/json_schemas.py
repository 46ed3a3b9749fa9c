"""JSON schemas as clients send them: checked, and cut down to what constrains an answer.

The language is JSON Schema 2020-12 without what token masks cannot keep exactly. Annotations are
dropped; any other keyword that is not known here is refused by its name, never ignored. What is let
through is bounded, so that nobody's schema is dear to compile. Regular expressions are only looked
at: whoever compiles them refuses the rest.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from meshnet_common.openai.errors import ApiError, invalid_request, unsupported_value
from meshnet_common.openai.schema_ends import has_finite_answer
from meshnet_common.openai.schema_keywords import (
    ANNOTATIONS,
    FAULTS,
    number_fault,
    pattern_fault,
    text_fault,
)
from meshnet_common.openai.schema_limits import check_combinations
from meshnet_common.openai.schema_refs import IN_LISTS, IN_MAPS, IN_ONE, Place, Schema, Targets

MOST_BYTES = 256 << 10
MOST_DEPTH = 64
"""Objects and lists within each other."""
MOST_ENTRIES = {"properties": 1000, "enum": 1000, "patternProperties": 64}
"""Under all keywords of a name, in a whole schema."""


def read_schema(schema: dict[str, Any], place: str) -> Schema:
    """Check a schema and leave out what constrains nothing; raises ApiError 400.

    `place` is the field that the error names.
    """
    reader = _Reader(place)
    cleaned = reader.object_of(schema, (), 1)
    reader.targets.check(cleaned, reader.refuse)
    if len(msgspec.json.encode(cleaned)) > MOST_BYTES:
        raise reader.refuse((), f"is over {MOST_BYTES} bytes")
    check_combinations(reader.targets, reader.refuse)
    if not has_finite_answer(cleaned, reader.targets):
        raise reader.refuse((), "has no answer that ends: it refers to itself without a way out")
    return cleaned


class _Reader:
    """One pass over a schema; counts what all of it may have only so much of."""

    def __init__(self, place: str) -> None:
        self.targets = Targets()
        self._place = place
        self._left = dict(MOST_ENTRIES)

    def refuse(self, place: Place, what: str) -> ApiError:
        return invalid_request(f"{self._at(place)} {what}.", self._place)

    def object_of(self, schema: object, place: Place, depth: int) -> Schema:
        """Read one schema that is an object, and all schemas within it."""
        if not isinstance(schema, dict):
            raise self.refuse(place, "must be a schema, which is a JSON object or a boolean")
        self._check_depth(place, depth)
        cleaned: Schema = {}
        self.targets.add(cleaned)
        for keyword, value in schema.items():
            if not _is_dropped(keyword, value, place):
                cleaned[keyword] = self._value_of(keyword, value, (*place, keyword), depth + 1)
        self._check_fewest(cleaned, place)
        return cleaned

    def _value_of(self, keyword: str, value: object, place: Place, depth: int) -> object:
        if keyword in IN_ONE:
            return self._schema_of(value, place, depth)
        if keyword in IN_MAPS:
            return self._map_of(keyword, value, place, depth)
        if keyword in IN_LISTS:
            return self._list_of(value, place, depth)
        self._check_value(keyword, value, place, depth)
        return value

    def _schema_of(self, schema: object, place: Place, depth: int) -> Schema | bool:
        return schema if isinstance(schema, bool) else self.object_of(schema, place, depth)

    def _map_of(
        self, keyword: str, value: object, place: Place, depth: int
    ) -> dict[str, Schema | bool]:
        if not isinstance(value, dict):
            raise self.refuse(place, "must be a JSON object that holds schemas")
        self._count(keyword, value, place)
        for name in value:
            fault = pattern_fault(name) if keyword == "patternProperties" else text_fault(name)
            self._refuse_fault(fault, place)
        return {
            name: self._schema_of(schema, (*place, name), depth + 1)
            for name, schema in value.items()
        }

    def _list_of(self, value: object, place: Place, depth: int) -> list[Schema | bool]:
        if not isinstance(value, list) or not value:
            raise self.refuse(place, "must be a list of schemas")
        return [
            self._schema_of(schema, (*place, str(index)), depth + 1)
            for index, schema in enumerate(value)
        ]

    def _check_value(self, keyword: str, value: object, place: Place, depth: int) -> None:
        if keyword == "$ref":
            self.targets.note(value, place, self.refuse)
        elif keyword == "const":
            self._check_constant(value, place, depth)
        elif keyword == "enum":
            if not isinstance(value, list) or not value:
                raise self.refuse(place, "must be a list of values")
            self._count(keyword, value, place)
            self._check_constant(value, place, depth)
        elif keyword in FAULTS:
            self._refuse_fault(FAULTS[keyword](value), place)
        else:
            text = f"the keyword `{keyword[:64]}` is not supported, and none is ignored."
            raise unsupported_value(self._place, f"{self._at(place[:-1])}: {text}")

    def _check_constant(self, value: object, place: Place, depth: int) -> None:
        self._check_depth(place, depth)
        if isinstance(value, str):
            self._refuse_fault(text_fault(value), place)
        elif isinstance(value, list | dict):
            # What an object holds are its names and its values.
            for held in (*value, *(value.values() if isinstance(value, dict) else ())):
                self._check_constant(held, place, depth + 1)
        elif value is not None and not isinstance(value, bool):
            self._refuse_fault(number_fault(value), place)

    def _check_depth(self, place: Place, depth: int) -> None:
        if depth > MOST_DEPTH:
            raise self.refuse(place, f"is nested more than {MOST_DEPTH} levels deep")

    def _count(self, keyword: str, entries: dict[str, Any] | list[Any], place: Place) -> None:
        if keyword in self._left:
            self._left[keyword] -= len(entries)
            if self._left[keyword] < 0:
                most = MOST_ENTRIES[keyword]
                raise self.refuse(place, f"makes more than {most} entries of `{keyword}` in all")

    def _check_fewest(self, cleaned: Mapping[str, Any], place: Place) -> None:
        # A name that only a schema for all further ones allows may come twice, which is one name to
        # a reader: so a count is kept only where it says no more than `required`, or "not empty".
        if cleaned.get("minProperties", 0) > max(1, len(set(cleaned.get("required", ())))):
            raise self.refuse(place, "has `minProperties` above the number of `required` names")

    def _refuse_fault(self, fault: str | None, place: Place) -> None:
        if fault is not None:
            raise self.refuse(place, fault)

    def _at(self, place: Place) -> str:
        where = "/".join(place)[-200:]
        return f"`{self._place}`{where and f' at {where}'}"


def _is_dropped(keyword: str, value: object, place: Place) -> bool:
    is_name_of_all = keyword == "$id" and not place
    is_extension = keyword.startswith("x-")
    # These say nothing when they are false.
    is_off = keyword in {"nullable", "uniqueItems"} and value is False
    return keyword in ANNOTATIONS or is_name_of_all or is_extension or is_off
