"""From the bytes of a chat request to what a Head Worker needs, every rule checked on the way.

A body becomes a `ChatRequest` or an ApiError 400. What this release does not do (tools, several
choices, logprobs, logit bias, penalties, constrained output) is refused by name and never ignored;
fields that change nothing for the answer, and unknown ones, are ignored, since clients keep adding
fields.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from meshnet_common.openai.errors import ApiError, invalid_request, unsupported_value
from meshnet_common.openai.json_body import decode_body
from meshnet_common.openai.messages import ChatMessage, MessageBody, read_messages

MAX_STOP_STRINGS = 4
MAX_STOP_CHARACTERS = 4096
MAX_CHOICES = 128

DEFAULT_TEMPERATURE = 1.0
DEFAULT_TOP_P = 1.0

_Name = Annotated[str, Meta(min_length=1, max_length=256)]
_Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_TokenLimit = Annotated[int, Meta(ge=1, le=2**63 - 1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A chat request after validation; None means that the client left it open."""

    model: str
    messages: tuple[ChatMessage, ...]
    max_tokens: int | None = None
    """Most tokens of the answer; still to be clamped to the room left in the context."""
    temperature: float = DEFAULT_TEMPERATURE
    top_p: float = DEFAULT_TOP_P
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0


class RequestOutline(msgspec.Struct, frozen=True):
    """The two facts that a proxy needs of a request it passes on unread."""

    model: _Name
    stream: bool | None = False


class _StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = False


class _ResponseFormat(msgspec.Struct, frozen=True):
    type: str
    json_schema: dict[str, Any] | None = None


class _ChatBody(msgspec.Struct, frozen=True):
    """The body as clients send it: OpenAI's names, types and bounds; null means absent."""

    model: _Name
    messages: Annotated[list[MessageBody], Meta(min_length=1)]
    max_completion_tokens: _TokenLimit | None = None
    max_tokens: _TokenLimit | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    seed: _Int64 | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    # Read only to be refused, unless they ask for what happens anyway.
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    logit_bias: dict[str, Any] | None = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    top_k: _Int64 | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    response_format: _ResponseFormat | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    functions: list[Any] | None = None
    function_call: str | dict[str, Any] | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    store: bool | None = None


def parse_chat_request(body: bytes) -> ChatRequest:
    """Check the whole body of `POST /v1/chat/completions`; raises ApiError 400, nothing else."""
    fields = decode_body(body, _ChatBody)
    _refuse_tools(fields)
    _refuse_sampling_extras(fields)
    _refuse_other_outputs(fields)
    if fields.stream_options is not None and not fields.stream:
        raise invalid_request("`stream_options` needs `stream: true`.", "stream_options")
    return ChatRequest(
        model=fields.model,
        messages=read_messages(fields.messages),
        max_tokens=_answer_limit(fields),
        temperature=_or_default(fields.temperature, DEFAULT_TEMPERATURE),
        top_p=_or_default(fields.top_p, DEFAULT_TOP_P),
        seed=fields.seed,
        stop=_stop_strings(fields.stop),
        stream=bool(fields.stream),
        include_usage=bool(fields.stream_options and fields.stream_options.include_usage),
        ignore_eos=bool(fields.ignore_eos),
        min_tokens=fields.min_tokens or 0,
    )


def outline_request(body: bytes) -> RequestOutline:
    """Read only the model and whether a stream is asked for; raises ApiError 400."""
    return decode_body(body, RequestOutline)


def _or_default(value: float | None, default: float) -> float:
    return default if value is None else value


def _answer_limit(fields: _ChatBody) -> int | None:
    limit = fields.max_completion_tokens
    if limit is None:
        limit = fields.max_tokens
    if limit is not None and fields.min_tokens is not None and fields.min_tokens > limit:
        raise invalid_request("`min_tokens` is greater than the token limit.", "min_tokens")
    return limit


def _stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(strings) > MAX_STOP_STRINGS:
        raise invalid_request(f"`stop` has more than {MAX_STOP_STRINGS} strings.", "stop")
    if "" in strings:
        raise invalid_request("`stop` must not hold an empty string.", "stop")
    if any(len(string) > MAX_STOP_CHARACTERS for string in strings):
        raise invalid_request(f"A stop string is over {MAX_STOP_CHARACTERS} characters.", "stop")
    return strings


def _refuse_tools(fields: _ChatBody) -> None:
    if fields.tools == []:
        raise invalid_request("`tools` must not be an empty list; leave it out.", "tools")
    if fields.tools:
        raise _unsupported("tools")
    if fields.tool_choice is not None:
        raise invalid_request("`tool_choice` is only allowed with `tools`.", "tool_choice")
    if fields.functions:
        raise _unsupported("functions")
    if fields.function_call is not None:
        raise _unsupported("function_call")


def _refuse_sampling_extras(fields: _ChatBody) -> None:
    asked = {
        "n": fields.n not in {None, 1},
        "logit_bias": bool(fields.logit_bias),
        "frequency_penalty": bool(fields.frequency_penalty),
        "presence_penalty": bool(fields.presence_penalty),
        "repetition_penalty": fields.repetition_penalty not in {None, 1.0},
        "top_k": fields.top_k not in {None, 0, -1},
        "min_p": bool(fields.min_p),
    }
    _refuse_first(asked)


def _refuse_other_outputs(fields: _ChatBody) -> None:
    if fields.top_logprobs is not None and not fields.logprobs:
        raise invalid_request("`top_logprobs` needs `logprobs: true`.", "top_logprobs")
    _check_response_format(fields.response_format)
    asked = {
        "logprobs": bool(fields.logprobs),
        "modalities": fields.modalities not in (None, ["text"]),
        "audio": fields.audio is not None,
        "store": bool(fields.store),
    }
    _refuse_first(asked)


def _check_response_format(response_format: _ResponseFormat | None) -> None:
    if response_format is None or response_format.type == "text":
        return
    if response_format.type not in {"json_object", "json_schema"}:
        raise invalid_request("`response_format.type` is unknown.", "response_format.type")
    if response_format.type == "json_schema" and response_format.json_schema is None:
        message = "`response_format.json_schema` is missing."
        raise invalid_request(message, "response_format.json_schema")
    raise _unsupported("response_format")


def _refuse_first(asked: dict[str, bool]) -> None:
    for param, is_asked in asked.items():
        if is_asked:
            raise _unsupported(param)


def _unsupported(param: str) -> ApiError:
    return unsupported_value(param, f"This release does not support this value of `{param}`.")
