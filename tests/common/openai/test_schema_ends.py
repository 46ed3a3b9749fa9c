from typing import Any

import pytest

from meshnet_common.openai.errors import ApiError
from meshnet_common.openai.json_schemas import read_schema

NODE = {"$ref": "#/$defs/node"}


def document(**node: Any) -> dict[str, Any]:
    return {"$defs": {"node": node}, **NODE}


OBJECT = {"properties": {"a": NODE}, "required": ["a"]}

ENDLESS = [
    {"$ref": "#"},
    document(**NODE),
    document(anyOf=[NODE]),
    document(anyOf=[NODE, NODE]),
    document(allOf=[NODE, {"type": "null"}]),
    document(type="object", properties={"next": NODE}, required=["next"]),
    document(type="object", additionalProperties=NODE, required=["next"]),
    document(type="array", items=NODE, minItems=1),
    document(type="array", prefixItems=[NODE], minItems=1),
    document(type="array", prefixItems=[{"type": "null"}], items=NODE, minItems=2),
    document(type=["array", "object"], items=NODE, minItems=1, **OBJECT),
    {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        "$ref": "#/$defs/a",
    },
    {
        "$defs": {
            "a": {"type": "array", "items": {"$ref": "#/$defs/b"}, "minItems": 1},
            "b": NODE,
            "node": {
                "type": "object",
                "properties": {"a": {"$ref": "#/$defs/a"}},
                "required": ["a"],
            },
        },
        "$ref": "#/$defs/a",
    },
    {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
]
ENDING = [
    document(type="null"),
    document(anyOf=[NODE, {"type": "null"}]),
    document(oneOf=[{"type": "object", **OBJECT}, {"const": 1}]),
    document(type="object", properties={"next": NODE}),
    document(type="object", properties={"next": NODE}, required=["other"]),
    document(type="array", items=NODE),
    document(type="array", prefixItems=[NODE]),
    document(type=["array", "null"], items=NODE, minItems=1),
    document(type="array", items=True, minItems=1),
    document(enum=[[[]]], minItems=1),
    {},
]


@pytest.mark.parametrize("schema", ENDLESS)
def test_a_schema_that_only_leads_back_to_itself_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="no answer that ends"):
        read_schema(schema, "schema")


@pytest.mark.parametrize("schema", ENDING)
def test_a_schema_that_can_end_is_let_through(schema: dict[str, Any]) -> None:
    assert read_schema(schema, "schema") == schema


def test_a_chain_of_references_may_be_long() -> None:
    chain = {f"d{place}": {"$ref": f"#/$defs/d{place + 1}"} for place in range(5000)}
    schema = {"$defs": {**chain, "d5000": {"type": "null"}}, "$ref": "#/$defs/d0"}
    assert read_schema(schema, "schema") == schema
