from typing import Any

import pytest

from meshnet_common.openai.errors import ApiError
from meshnet_common.openai.json_schemas import read_schema


def choices(count: int, name: str) -> dict[str, Any]:
    return {
        "anyOf": [{"properties": {f"{name}{place}": {"const": place}}} for place in range(count)]
    }


def doubling(levels: int, **beside: Any) -> dict[str, Any]:
    """Each level refers to the next one twice, so that the last is there 2 ** levels times."""
    defs: dict[str, Any] = {
        f"d{level}": {
            "type": "object",
            "properties": {
                "left": {"$ref": f"#/$defs/d{level + 1}", **beside},
                "right": {"$ref": f"#/$defs/d{level + 1}", **beside},
            },
        }
        for level in range(levels)
    }
    return {"$defs": {**defs, f"d{levels}": {"type": "null"}}, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [choices(2, f"n{place}") for place in range(10)]},
        {"allOf": [choices(12, "a"), choices(12, "b")]},
        {"allOf": [{"anyOf": [choices(12, "a"), choices(12, "b")]}, choices(12, "c")]},
        {"minProperties": 1, **choices(129, "a")},
        {"oneOf": choices(12, "a")["anyOf"], **choices(12, "b")},
        doubling(12, minProperties=1),
        doubling(40, minProperties=1),
        doubling(12, allOf=[{"minProperties": 1}]),
    ],
)
def test_a_schema_whose_parts_multiply_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="combines too many"):
        read_schema(schema, "schema")


@pytest.mark.parametrize(
    "schema",
    [
        choices(900, "a"),
        {"type": "object", **choices(900, "a")},
        {"allOf": [choices(11, "a"), choices(11, "b")]},
        doubling(40),
        doubling(6, minProperties=1),
        {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": choices(500, "a")}},
    ],
)
def test_alternatives_that_stand_alone_may_be_many(schema: dict[str, Any]) -> None:
    assert read_schema(schema, "schema") == schema


def test_what_holds_itself_counts_once() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}
    schema = {"$defs": {"node": node}, "allOf": [{"$ref": "#/$defs/node"}, {"minProperties": 1}]}
    assert read_schema(schema, "schema") == schema
