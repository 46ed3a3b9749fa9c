"""The OpenAPI 3.1 document of the public API; pure.

Bodies are described by the very types that read and write them, so the document cannot say anything
else than the code does. An answer's keys are all there unless their type says that one may be left
out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from meshnet_common.openai.chat_writer import ChatCompletion
from meshnet_common.openai.completion_writer import TextCompletion
from meshnet_common.openai.completions import CompletionBody
from meshnet_common.openai.embeddings import EmbeddingAnswer, EmbeddingBody
from meshnet_common.openai.errors import ErrorEnvelope
from meshnet_common.openai.requests import ChatBody
from meshnet_common.openai.response_objects import Response
from meshnet_common.openai.response_request import ResponseBody
from meshnet_common.openai.responses import InputTokens, ListedModel, ModelList

OPENAPI_VERSION = "3.1.0"
JSON = "application/json"
EVENT_STREAM = "text/event-stream"

_REF = "#/components/schemas/{name}"
_ERRORS: Mapping[int, str] = {
    400: "The request breaks a rule; `param` names the field.",
    401: "No valid API key.",
    403: "This key, or this caller, may not do this.",
    404: "No such model or URL.",
    408: "The request came too slowly.",
    413: "The body is too large.",
    415: "The body is no JSON, or is compressed.",
    429: "Too many requests of this key.",
    500: "A fault of the server.",
    502: "No Worker could answer.",
    503: "The model cannot be served now; `Retry-After` says when to come again.",
    504: "It took too long.",
}
_COUNT: Mapping[str, Any] = {"type": "integer", "minimum": 0}
_TEXT: Mapping[str, Any] = {"type": "string"}
_READING = (401, 403, 404, 429, 500, 503)


@dataclass(frozen=True, slots=True)
class Operation:
    """One endpoint; `streams` if it answers with events where the request asks for them."""

    path: str
    method: str
    summary: str
    answer: type[msgspec.Struct]
    body: type[msgspec.Struct] | None = None
    parameters: Sequence[str] = ()
    streams: bool = False

    @property
    def name(self) -> str:
        words = self.path.strip("/").replace("{", "").replace("}", "").replace("_", "/").split("/")
        return self.method + "".join(word.capitalize() for word in words)


OPERATIONS = (
    Operation(
        "/v1/chat/completions",
        "post",
        "Answer a chat, whole or as a stream of `chat.completion.chunk` events",
        ChatCompletion,
        ChatBody,
        streams=True,
    ),
    Operation(
        "/v1/completions",
        "post",
        "Go on with texts, whole or as a stream of `text_completion` events",
        TextCompletion,
        CompletionBody,
        streams=True,
    ),
    Operation(
        "/v1/chat/completions/input_tokens",
        "post",
        "Count the tokens of a chat, tools and all, without answering it",
        InputTokens,
        ChatBody,
    ),
    Operation(
        "/v1/responses",
        "post",
        "Answer a conversation that is not stored, whole or as a stream of numbered events",
        Response,
        ResponseBody,
        streams=True,
    ),
    Operation(
        "/v1/responses/input_tokens",
        "post",
        "Count the tokens of a conversation, tools and all, without answering it",
        InputTokens,
        ResponseBody,
    ),
    Operation(
        "/v1/embeddings", "post", "Make a vector of each text", EmbeddingAnswer, EmbeddingBody
    ),
    Operation("/v1/models", "get", "List the models that are served now", ModelList),
    Operation(
        "/v1/models/{model}", "get", "Describe one model", ListedModel, parameters=("model",)
    ),
)


def openapi_document(version: str) -> dict[str, Any]:
    """Write the document; `version` is the release's."""
    return {
        "openapi": OPENAPI_VERSION,
        "info": {
            "title": "meshnet",
            "version": version,
            "summary": "Language models run by volunteers together, by OpenAI's API",
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"apiKey": []}],
        "paths": _paths(OPERATIONS),
        "components": {
            "schemas": _schemas(OPERATIONS),
            "responses": {str(status): _error(status) for status in _ERRORS},
            "securitySchemes": {"apiKey": {"type": "http", "scheme": "bearer"}},
        },
    }


def _paths(operations: Iterable[Operation]) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    return paths


def _operation(operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {JSON: {"schema": _ref(operation.answer)}}
    if operation.streams:
        content[EVENT_STREAM] = {"schema": {"type": "string"}}
    statuses = _ERRORS if operation.body is not None else _READING
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "responses": {
            "200": {
                "description": "The answer.",
                "headers": _headers() | (_course() if operation.body is not None else {}),
                "content": content,
            },
            **{str(status): {"$ref": f"#/components/responses/{status}"} for status in statuses},
        },
    }
    if operation.body is not None:
        body = {JSON: {"schema": _ref(operation.body)}}
        described["requestBody"] = {"required": True, "content": body}
    if operation.parameters:
        described["parameters"] = [_parameter(name) for name in operation.parameters]
    return described


def _parameter(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": "A public name; its slashes may be encoded or not.",
        "schema": {"type": "string", "minLength": 1},
    }


def _headers() -> dict[str, Any]:
    return {
        "x-request-id": {"required": True, "schema": {"type": "string", "maxLength": 128}},
        "openai-processing-ms": {"required": True, "schema": _COUNT},
    }


def _course() -> dict[str, Any]:
    """What is told where a model was asked; limits are those of the key, where it has any."""
    limits = {
        f"x-ratelimit-{fact}-{kind}": {"schema": schema}
        for fact, schema in (("limit", _COUNT), ("remaining", _COUNT), ("reset", _TEXT))
        for kind in ("requests", "tokens")
    }
    return {
        "x-meshnet-queue-ms": {"schema": _COUNT},
        "x-meshnet-overhead-ms": {"schema": _COUNT},
        "x-meshnet-route-id": {"schema": _TEXT},
        **limits,
    }


def _error(status: int) -> dict[str, Any]:
    headers = _headers()
    if status in {429, 502, 503}:
        headers["Retry-After"] = {"schema": _COUNT}
    if status in {429, 502, 504}:
        headers["x-should-retry"] = {"schema": {"type": "string", "enum": ["false"]}}
    if status == 401:
        headers["WWW-Authenticate"] = {"required": True, "schema": {"type": "string"}}
    return {
        "description": _ERRORS[status],
        "headers": headers,
        "content": {JSON: {"schema": _ref(ErrorEnvelope)}},
    }


def _ref(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": _REF.format(name=_public(kind.__name__))}


def _schemas(operations: Iterable[Operation]) -> dict[str, Any]:
    bodies = [operation.body for operation in operations if operation.body is not None]
    answers = [ErrorEnvelope, *(operation.answer for operation in operations)]
    _, asked = msgspec.json.schema_components(bodies, ref_template=_REF)
    _, told = msgspec.json.schema_components(answers, ref_template=_REF)
    for schema in told.values():
        _require_all(schema)
    return {_public(name): _renamed(schema) for name, schema in {**asked, **told}.items()}


def _require_all(schema: dict[str, Any]) -> None:
    """What is always written is required, though it has a default; UNSET leaves none."""
    if "properties" in schema:
        schema["required"] = [
            name
            for name, described in schema["properties"].items()
            if name in schema.get("required", ()) or "default" in described
        ]


def _renamed(schema: Any) -> Any:
    """Point every reference at the public name."""
    match schema:
        case {"$ref": str(ref)}:
            return {**schema, "$ref": _REF.format(name=_public(ref.rsplit("/", 1)[1]))}
        case dict():
            return {key: _renamed(value) for key, value in schema.items()}
        case list() | tuple():
            return [_renamed(value) for value in schema]
        case _:
            return schema


def _public(name: str) -> str:
    return name.lstrip("_")
