import json
from typing import Any

import msgspec
import pytest

from meshnet_common.openai.errors import ApiError
from meshnet_common.openai.formats import (
    TEXT,
    JsonObject,
    JsonSchema,
    JsonSchemaBody,
    ResponseFormat,
    ResponseFormatBody,
    grammar_text,
    read_response_format,
)

POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


def read(fields: dict[str, Any] | None) -> ResponseFormat:
    body = None if fields is None else msgspec.convert(fields, ResponseFormatBody)
    return read_response_format(body)


def schema_field(schema: Any, **others: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "point", "schema": schema, **others}}


@pytest.mark.parametrize("fields", [None, {"type": "text"}])
def test_an_answer_is_text_unless_asked_otherwise(fields: dict[str, Any] | None) -> None:
    assert read(fields) == TEXT
    assert grammar_text(TEXT) == ""


def test_a_json_object_is_a_schema_of_any_object() -> None:
    assert read({"type": "json_object"}) == JsonObject()
    (grammar,) = json.loads(grammar_text(JsonObject()))["grammars"]
    assert grammar["json_schema"]["type"] == "object"


def test_a_schema_is_kept_in_the_order_in_which_it_was_written() -> None:
    ordered = {"type": "object", "properties": {"b": {"type": "null"}, "a": {"type": "null"}}}
    answer_format = read(schema_field(ordered, strict=True))
    assert answer_format == JsonSchema(name="point", schema=ordered, strict=True)
    (grammar,) = json.loads(grammar_text(answer_format))["grammars"]
    assert list(grammar["json_schema"]["properties"]) == ["b", "a"]


def test_no_schema_decides_by_itself_where_blanks_go() -> None:
    free = {**POINT, "x-guidance": {"whitespace_flexible": True, "lenient": True}}
    (grammar,) = json.loads(grammar_text(read(schema_field(free))))["grammars"]
    assert grammar["json_schema"]["x-guidance"]["whitespace_flexible"] is False
    assert "lenient" not in grammar["json_schema"]["x-guidance"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"type": "yaml"}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"schema": POINT}}, ".json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "p"}}, ".json_schema.schema"),
        (schema_field(None), ".json_schema.schema"),
        (schema_field([POINT]), ".json_schema.schema"),
        (schema_field("object"), ".json_schema.schema"),
        (schema_field(True), ".json_schema.schema"),
        (schema_field(POINT, name=""), ".json_schema.name"),
        (schema_field(POINT, name="a b"), ".json_schema.name"),
        (schema_field(POINT, name="a" * 65), ".json_schema.name"),
        (schema_field(POINT, name="größe"), ".json_schema.name"),
        (schema_field({"not": POINT}), ".json_schema.schema"),
    ],
)
def test_a_format_that_is_not_whole_names_the_field_at_fault(
    fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(ApiError) as refused:
        read(fields)
    assert refused.value.status == 400
    assert refused.value.body.param is not None
    assert refused.value.body.param.endswith(param)


def test_another_place_of_the_same_field_is_named_as_the_client_knows_it() -> None:
    fields = ResponseFormatBody(type="json_schema", json_schema=JsonSchemaBody(name="?"))
    with pytest.raises(ApiError) as refused:
        read_response_format(fields, "text.format")
    assert refused.value.body.param == "text.format.json_schema.name"
