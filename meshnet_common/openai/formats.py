"""What an answer has to be: text, any JSON object, or JSON that matches a schema.

A request's `response_format` becomes one `ResponseFormat`, or an ApiError 400 that names the field
and, within a schema, the keyword. The Tail Worker is told of it as the text of a grammar, in the
language of the library that makes token masks there. Strict or not, a schema is kept exactly: what
the masks cannot keep is refused.
"""

import re
from typing import Any

import msgspec

from meshnet_common.openai.errors import invalid_request
from meshnet_common.openai.json_schemas import read_schema

SCHEMA_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

# One blank after a comma and a colon and nowhere else, as Python writes it: a small model that may
# choose where blanks go may go on with blanks for ever. And each string has one form only, so that
# a further property cannot be an earlier one's name in disguise.
LAYOUT = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "json_allowed_escapes": 'nrbtf\\"',
}


class Text(msgspec.Struct, frozen=True, tag=True):
    """Any text."""


class JsonObject(msgspec.Struct, frozen=True, tag=True):
    """Any JSON object."""


class JsonSchema(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """JSON that matches a schema, of which only what constrains an answer is left."""

    name: str
    schema: dict[str, Any]
    strict: bool = False


ResponseFormat = Text | JsonObject | JsonSchema

TEXT = Text()


class JsonSchemaBody(msgspec.Struct, frozen=True):
    """The schema and its name as clients send them."""

    name: str | None = None
    schema: Any = None
    strict: bool | None = None
    description: str | None = None


class ResponseFormatBody(msgspec.Struct, frozen=True):
    """The field `response_format` as clients send it."""

    type: str
    json_schema: JsonSchemaBody | None = None


def read_response_format(
    fields: ResponseFormatBody | None, place: str = "response_format"
) -> ResponseFormat:
    """Check the field; raises ApiError 400 that names what is at fault, and where."""
    if fields is None or fields.type == "text":
        return TEXT
    if fields.type == "json_object":
        return JsonObject()
    if fields.type != "json_schema":
        text = f"`{place}.type` must be text, json_object or json_schema."
        raise invalid_request(text, f"{place}.type")
    if fields.json_schema is None:
        text = f"`{place}.json_schema` is missing."
        raise invalid_request(text, f"{place}.json_schema")
    return read_json_schema(fields.json_schema, f"{place}.json_schema")


def read_json_schema(fields: JsonSchemaBody, place: str) -> JsonSchema:
    """Check a schema with its name; raises ApiError 400."""
    if fields.name is None or SCHEMA_NAME.fullmatch(fields.name) is None:
        text = f"`{place}.name` must be 1 to 64 letters, digits, underscores and hyphens."
        raise invalid_request(text, f"{place}.name")
    if not isinstance(fields.schema, dict):
        raise invalid_request(f"`{place}.schema` must be a JSON object.", f"{place}.schema")
    schema = read_schema(fields.schema, f"{place}.schema")
    return JsonSchema(name=fields.name, schema=schema, strict=bool(fields.strict))


def grammar_text(answer_format: ResponseFormat) -> str:
    """Write what the Tail Worker's masks are made of; empty where anything goes."""
    match answer_format:
        case Text():
            return ""
        case JsonObject():
            return schema_grammar({"type": "object"})
        case JsonSchema():
            return schema_grammar(answer_format.schema)


def schema_grammar(schema: dict[str, Any]) -> str:
    """Write a schema that `read_schema` has let through as a grammar."""
    laid_out = {**schema, "x-guidance": LAYOUT}
    return msgspec.json.encode({"grammars": [{"json_schema": laid_out}]}).decode()
