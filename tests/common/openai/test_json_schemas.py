import json
import time
from typing import Any

import pytest

from meshnet_common.openai.errors import MAX_MESSAGE_CHARACTERS, ApiError
from meshnet_common.openai.json_schemas import MOST_BYTES, MOST_DEPTH, read_schema

PLACE = "response_format.json_schema.schema"


def refused(schema: dict[str, Any]) -> ApiError:
    with pytest.raises(ApiError) as raised:
        read_schema(schema, PLACE)
    assert raised.value.status == 400
    assert raised.value.body.param == PLACE
    assert len(raised.value.body.message) <= MAX_MESSAGE_CHARACTERS
    return raised.value


def nested(levels: int, keyword: str) -> dict[str, Any]:
    """So many schemas within each other, under a keyword that holds one, some, or named ones."""
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(levels):
        held: Any = {"a": schema} if keyword in {"properties", "$defs"} else schema
        schema = {keyword: [schema] if keyword in {"anyOf", "prefixItems"} else held}
    return schema


def test_only_what_constrains_an_answer_is_left() -> None:
    annotated = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.com/point",
        "$comment": "two numbers",
        "title": "Point",
        "description": "A point.",
        "type": "object",
        "x-order": 1,
        "properties": {"x": {"type": "integer", "title": "X", "default": 0, "examples": [1]}},
        "required": ["x"],
        "additionalProperties": False,
    }
    assert read_schema(annotated, PLACE) == {
        "type": "object",
        "properties": {"x": {"type": "integer"}},
        "required": ["x"],
        "additionalProperties": False,
    }


def test_a_property_may_be_called_like_a_keyword() -> None:
    names = {name: {"type": "null"} for name in ("not", "title", "$ref", "enum", "x-a", "default")}
    schema = {"type": "object", "properties": names, "required": list(names)}
    assert read_schema(schema, PLACE) == schema


@pytest.mark.parametrize(
    "keyword",
    [
        "not",
        "if",
        "then",
        "else",
        "contains",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "propertyNames",
        "unevaluatedItems",
        "unevaluatedProperties",
        "additionalItems",
        "uniqueItems",
        "nullable",
        "$anchor",
        "$dynamicRef",
        "$recursiveRef",
        "contentEncoding",
        "minLenght",
    ],
)
def test_a_keyword_that_is_not_kept_is_named_wherever_it_is(keyword: str) -> None:
    for schema in (
        {keyword: True},
        {
            "type": "object",
            "properties": {"a": {"anyOf": [{"type": "array", "items": {keyword: 1}}]}},
        },
        {"$defs": {"unused": {keyword: 1}}},
    ):
        fault = refused(schema)
        assert f"`{keyword}`" in fault.body.message
        assert fault.body.code == "unsupported_value"


def test_a_keyword_that_says_nothing_may_stand_there() -> None:
    assert read_schema({"type": "array", "uniqueItems": False, "nullable": False}, PLACE) == {
        "type": "array"
    }


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "integr"}, "type"),
        ({"properties": []}, "properties"),
        ({"properties": {"a": None}}, "properties/a"),
        ({"items": [{"type": "null"}]}, "items"),
        ({"anyOf": []}, "anyOf"),
        ({"anyOf": {}}, "anyOf"),
        ({"allOf": [1]}, "allOf/0"),
        ({"enum": []}, "enum"),
        ({"enum": "a"}, "enum"),
        ({"const": {"a": [2**53 + 1]}}, "const"),
        ({"const": "\x00"}, "const"),
        ({"const": {"\x00": 1}}, "const"),
        ({"properties": {"\x7f": {}}}, "properties"),
        ({"patternProperties": {"(?i)a": {}}}, "patternProperties"),
        ({"items": {"pattern": "(?i)a"}}, "items/pattern"),
        ({"$ref": "https://example.com/a"}, "$ref"),
        ({"$ref": "#/$defs/a"}, "$ref"),
        ({"items": {"$id": "https://example.com/a"}}, "$id"),
        ({"minProperties": 2}, "minProperties"),
        ({"minProperties": 3, "required": ["a", "b"]}, "minProperties"),
    ],
)
def test_a_fault_is_named_with_its_place(schema: dict[str, Any], keyword: str) -> None:
    assert keyword in refused(schema).body.message


@pytest.mark.parametrize(
    "schema",
    [
        {"minProperties": 1},
        {"minProperties": 2, "required": ["a", "b"]},
        {"enum": [None, True, 1, 1.5, "a", ["b"], {"c": "d"}]},
        {"anyOf": [True, False, {"type": "null"}]},
        {"type": "array", "items": False},
    ],
)
def test_what_is_kept_exactly_is_let_through(schema: dict[str, Any]) -> None:
    assert read_schema(schema, PLACE) == schema


HOSTILE = {
    "deep properties": nested(MOST_DEPTH, "properties"),
    "deep items": nested(MOST_DEPTH, "items"),
    "deep anyOf": nested(400, "anyOf"),
    "deep prefixItems": nested(400, "prefixItems"),
    "deep definitions": nested(400, "$defs"),
    "deep constant": {"const": json.loads("[" * 500 + "]" * 500)},
    "deep enumeration": {"enum": [json.loads('{"a":' * 300 + "1" + "}" * 300)]},
    "many properties": {"properties": {f"p{place}": {} for place in range(1001)}},
    "many properties in parts": {
        "anyOf": [{"properties": {f"p{place}": {} for place in range(20)}} for _ in range(51)]
    },
    "ten megabytes of enumeration": {"enum": ["x" * 10_000] * 1000},
    "a long enumeration": {"enum": list(range(1_000_000))},
    "a long constant": {"const": "x" * MOST_BYTES},
    "a long name": {"properties": {"x" * MOST_BYTES: {}}},
    "many patterns": {"patternProperties": {f"^{place}x": {} for place in range(65)}},
    "a long pattern": {"pattern": "(a?){10}" * 1000},
    "many definitions": {"$defs": {f"d{place}": {"type": "null"} for place in range(20_000)}},
    "recursion": {"$ref": "#"},
    "recursion in a ring": {
        "$defs": {f"d{p}": {"$ref": f"#/$defs/d{(p + 1) % 3000}"} for p in range(3000)},
        "$ref": "#/$defs/d7",
    },
    "recursion that grows": {
        "type": "object",
        "properties": {name: {"$ref": "#"} for name in "abcdefgh"},
        "required": list("abcdefgh"),
    },
    "an unknown keyword of a megabyte": {"y" * 1_000_000: 1},
    "a reference of a megabyte": {"$ref": "#/" + "a/" * 500_000},
    "a type of a megabyte": {"type": "a" * 1_000_000},
    "numbers without end": {"const": 10**400},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_is_refused_soon_and_in_few_words(name: str) -> None:
    began = time.process_time()
    fault = refused(HOSTILE[name])
    assert time.process_time() - began < 1.0
    assert len(fault.to_json()) < 2 * MAX_MESSAGE_CHARACTERS
