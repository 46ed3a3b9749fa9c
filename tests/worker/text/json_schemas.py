"""Schemas of many kinds, each as a client might send it, and the grammar that they become."""

from typing import Any

from meshnet_common.openai.formats import schema_grammar
from meshnet_common.openai.json_schemas import read_schema


def closed(**properties: Any) -> dict[str, Any]:
    """An object with all of these properties and no other."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


TREE = closed(value={"type": "integer"}, children={"type": "array", "items": ref("tree")})
CIRCLE = closed(kind={"const": "circle"}, radius={"type": "number", "exclusiveMinimum": 0})
SQUARE = closed(kind={"const": "square"}, side={"type": "number", "minimum": 0})

SCHEMAS: dict[str, dict[str, Any]] = {
    "scalars": closed(
        name={"type": "string"},
        age={"type": "integer"},
        height={"type": "number"},
        is_alive={"type": "boolean"},
        nothing={"type": "null"},
    ),
    "any object": {"type": "object"},
    "anything": {},
    "open object": {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]},
    "optional properties": {
        "type": "object",
        "properties": {name: {"type": "integer", "minimum": 7} for name in "abcdef"},
        "required": ["c", "unlisted"],
    },
    "further properties": {
        "type": "object",
        "properties": {"a": {"type": "null"}, '"': {"type": "null"}, "\n": {"type": "null"}},
        "additionalProperties": {"type": "boolean"},
    },
    "map": {
        "type": "object",
        "additionalProperties": {"type": "integer", "minimum": 0},
        "minProperties": 1,
        "maxProperties": 3,
    },
    "pattern properties": {
        "type": "object",
        "properties": {"x-a": {"type": "integer"}},
        "patternProperties": {"^x-": {"minimum": 5}, "^y": {"type": "null"}},
        "additionalProperties": False,
    },
    "nested arrays": {
        "type": "array",
        "items": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
        "maxItems": 3,
    },
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"enum": ["a", "b"]}],
        "items": {"type": "null"},
        "minItems": 2,
    },
    "enumeration": {"enum": ["red", "", 'a"\\\n', 1, -1.5, None, True, [1, "a"], {"b": None}]},
    "constant": closed(kind={"const": {"a": [1, 2.5, "é 😀"]}}),
    "recursion": {"$defs": {"tree": TREE}, **ref("tree")},
    "recursion of the whole": {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["next"],
        "additionalProperties": False,
    },
    "alternatives": closed(shape={"anyOf": [CIRCLE, SQUARE, {"type": "null"}]}),
    "exactly one": closed(shape={"oneOf": [CIRCLE, SQUARE]}),
    "all of": {"allOf": [closed(a={"type": "integer"}), {"properties": {"a": {"minimum": 3}}}]},
    "reference with more": {
        "$defs": {"small": {"type": "integer", "minimum": 0, "maximum": 99}},
        **closed(a={**ref("small"), "minimum": 50}),
    },
    "bounds": closed(
        percent={"type": "integer", "minimum": 0, "maximum": 100},
        ratio={"type": "number", "minimum": -0.5, "exclusiveMaximum": 1},
        negative={"type": "integer", "exclusiveMaximum": 0},
        step={"type": "integer", "multipleOf": 7, "minimum": -20, "maximum": 1000},
    ),
    "lengths": {
        "type": "array",
        "items": {"type": "string", "minLength": 2, "maxLength": 5},
        "minItems": 3,
        "maxItems": 3,
    },
    "patterns": closed(
        plate={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,5}$"},
        part={"type": "string", "pattern": "b[ac]+", "maxLength": 6},
    ),
    "formats": closed(
        on={"type": "string", "format": "date"},
        id={"type": "string", "format": "uuid"},
        at={"type": "string", "format": "ipv4"},
    ),
    "types": {"type": ["string", "null", "array"], "items": {"type": ["boolean", "integer"]}},
    "many properties": closed(
        **{f"property_{place:03}": {"type": "boolean"} for place in range(200)}
    ),
    "names like keywords": closed(**{"not": {"type": "null"}, "$ref": {"type": "null"}}),
}

WIDE: dict[str, dict[str, Any]] = {
    "open properties": {
        "type": "object",
        "properties": {f"a{i}": {"type": "integer"} for i in range(1000)},
    },
    "closed properties": {
        "type": "object",
        "properties": {f"a{i}": {"type": "string"} for i in range(1000)},
        "additionalProperties": False,
    },
    "properties of objects": {
        "type": "object",
        "properties": {f"a{i}": {"type": "object", "properties": {}} for i in range(1000)},
    },
    "properties of alternatives": {
        "anyOf": [
            {"type": "object", "properties": {f"a{i}_{k}": {"type": "string"} for k in range(7)}}
            for i in range(128)
        ]
    },
    "patterns": {
        "type": "object",
        "patternProperties": {f"^a{i}_": {"type": "string"} for i in range(64)},
        "additionalProperties": False,
    },
    "enumerated values": {"enum": [f"a{i}" for i in range(1000)]},
}
"""As many entries as a schema may have."""


def grammar(schema: dict[str, Any]) -> str:
    """The text of a schema's grammar, as a Head Worker sends it."""
    return schema_grammar(read_schema(schema, "schema"))
