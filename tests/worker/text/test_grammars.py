import time
from contextlib import suppress
from typing import Any

import pytest

from meshnet_common.openai.errors import MAX_MESSAGE_CHARACTERS, ApiError
from meshnet_worker.text.grammars import check_grammar
from tests.worker.text.json_schemas import SCHEMAS, closed, grammar

PARAM = "response_format.json_schema.schema"


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_clients_ask_for_can_be_followed(name: str) -> None:
    check_grammar(grammar(SCHEMAS[name]), PARAM)


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 5}]},
        {"type": "integer", "minimum": 5, "maximum": 3},
        {"type": "string", "minLength": 3, "maxLength": 2},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"anyOf": [False]},
        {"type": "string", "pattern": "("},
        {"type": "string", "pattern": "(?=a)a"},
        {"type": "string", "pattern": "(?<!b)a"},
        {"type": "string", "pattern": "(a)\\1"},
        {"type": "string", "pattern": "\\bword\\b"},
        {"type": "object", "patternProperties": {"a": {}, "b": {}}},
        {
            "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a", "minItems": 1}}},
            "$ref": "#/$defs/a",
        },
    ],
)
def test_what_no_answer_could_keep_is_refused_with_the_reason(schema: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as refused:
        check_grammar(grammar(schema), PARAM)
    assert refused.value.status == 400
    assert refused.value.body.param == PARAM
    assert refused.value.body.code == "unsupported_value"
    assert "\n" not in refused.value.body.message
    assert len(refused.value.body.message) <= MAX_MESSAGE_CHARACTERS


def test_a_text_that_is_no_grammar_is_refused() -> None:
    for text in ("{", "start: /(/", "{}", '{"grammars": []}', "\x00"):
        with pytest.raises(ApiError, match="cannot be followed"):
            check_grammar(text, PARAM)


def merged(levels: int) -> dict[str, Any]:
    defs: dict[str, Any] = {
        f"d{level}": closed(
            left={"$ref": f"#/$defs/d{level + 1}", "minProperties": 1},
            right={"$ref": f"#/$defs/d{level + 1}", "maxProperties": 9},
        )
        for level in range(levels)
    }
    return {"$defs": {**defs, f"d{levels}": closed(end={"type": "null"})}, "$ref": "#/$defs/d0"}


def choices(count: int, name: str) -> dict[str, Any]:
    names = [f"{name}{place}" for place in range(count)]
    return {"anyOf": [{"type": "object", "properties": {name: {"const": 1}}} for name in names]}


DEAR: dict[str, dict[str, Any]] = {
    "many optional properties": {
        "type": "object",
        "properties": {f"property_{place}": {"type": "string"} for place in range(1000)},
    },
    "a long enumeration of objects": {
        "enum": [{"a": place, "b": [place]} for place in range(1000)]
    },
    "an enumeration with a pattern": {
        "pattern": ".*3.*",
        "enum": [f"value number {place}" for place in range(1000)],
    },
    "patterns and properties": {
        "type": "object",
        "properties": {f"p{place}": {"type": "string"} for place in range(900)},
        "patternProperties": {f"^{place}x": {"type": "integer"} for place in range(64)},
    },
    "merged levels": merged(7),
    "merged alternatives": {"allOf": [choices(11, "a"), choices(11, "b")]},
    "doubled alternatives": {"allOf": [choices(2, f"n{place}") for place in range(7)]},
    "repetition of repetition": {"type": "string", "pattern": "(a{1,1000}){1,1000}"},
    "much that may come between": {"type": "string", "pattern": "(.{0,100}a.{0,100}b){30}"},
    "optional then required": {"type": "string", "pattern": "(a?){1000}a{1000}"},
    "much of everything": {"type": "string", "pattern": "\\p{L}{1,1000}"},
    "divisors": {
        "type": "array",
        "prefixItems": [{"type": "integer", "multipleOf": 1000 - place} for place in range(50)],
    },
    "divisors of one number": {
        "allOf": [{"type": "integer", "multipleOf": divisor} for divisor in (997, 991, 983)]
    },
    "bounds with many digits": {
        "anyOf": [
            {"type": "number", "minimum": place + 0.123456, "maximum": 9e15 - place / 7}
            for place in range(300)
        ]
    },
    "counts without end": {"type": "array", "minItems": 10**9, "items": {"minLength": 10**9}},
}


@pytest.mark.parametrize("name", DEAR)
def test_a_schema_at_its_limits_is_followed_or_refused_soon(name: str) -> None:
    began = time.process_time()
    with suppress(ApiError):
        check_grammar(grammar(DEAR[name]), PARAM)
    assert time.process_time() - began < 2.0
