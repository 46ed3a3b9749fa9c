"""From the bytes of a chat request to what a Head Worker needs, every rule checked on the way.

A body becomes a `ChatRequest` or an ApiError 400. What this release does not do is refused by name
and never ignored; fields that change nothing for the answer, and unknown ones, are ignored, since
clients keep adding fields.
"""

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from meshnet_common.openai.answer_request import (
    AnswerRequest,
    StreamOptions,
    check_stream_options,
)
from meshnet_common.openai.errors import ApiError, invalid_request, unsupported_value
from meshnet_common.openai.formats import TEXT, ResponseFormatBody, read_response_format
from meshnet_common.openai.generation_options import GenerationFields, read_generation_options
from meshnet_common.openai.json_body import decode_body
from meshnet_common.openai.messages import ChatMessage, MessageBody, read_messages
from meshnet_common.openai.tools import ToolBody, ToolUse, read_tool_use

MAX_TOP_LOGPROBS = 20

_Name = Annotated[str, Meta(min_length=1, max_length=256)]


class ChatRequest(AnswerRequest, frozen=True, kw_only=True):
    """A chat request after validation; None means that the client left it open."""

    ID_PREFIX: ClassVar[str] = "chatcmpl-"
    PROMPT_FIELD: ClassVar[str] = "messages"

    messages: tuple[ChatMessage, ...]

    def turns(self) -> Iterable[tuple[str, str]]:
        """Return who said what, from the beginning."""
        return ((message.role, message.text) for message in self.messages)


class RequestOutline(msgspec.Struct, frozen=True):
    """The two facts that a proxy needs of a request it passes on unread."""

    model: _Name
    stream: bool | None = False


class ChatBody(GenerationFields, frozen=True, kw_only=True):
    """The body as clients send it: OpenAI's names, types and bounds; null means absent."""

    model: _Name
    messages: Annotated[list[MessageBody], Meta(min_length=1)]
    max_completion_tokens: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    tools: list[ToolBody] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormatBody | None = None
    # Read only to be refused, unless they ask for what happens anyway.
    functions: list[Any] | None = None
    function_call: str | dict[str, Any] | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    store: bool | None = None
    best_of: int | None = None
    echo: bool | None = None


def parse_chat_request(body: bytes) -> ChatRequest:
    """Check the whole body of `POST /v1/chat/completions`; raises ApiError 400, nothing else."""
    fields = decode_body(body, ChatBody)
    _refuse_functions(fields)
    _refuse_other_outputs(fields)
    if fields.top_logprobs is not None and not fields.logprobs:
        raise invalid_request("`top_logprobs` needs `logprobs: true`.", "top_logprobs")
    tool_use = read_tool_use(fields.tools, fields.tool_choice, fields.parallel_tool_calls)
    _check_with_tools(fields, tool_use)
    answer_format = read_response_format(fields.response_format)
    _check_ends(fields, is_bound_to_end=tool_use.is_forced or answer_format != TEXT)
    return ChatRequest(
        model=fields.model,
        messages=read_messages(fields.messages),
        stream=bool(fields.stream),
        include_usage=check_stream_options(fields.stream_options, fields.stream),
        logprobs=bool(fields.logprobs),
        top_logprobs=fields.top_logprobs or 0,
        tool_use=tool_use,
        response_format=answer_format,
        **msgspec.structs.asdict(read_generation_options(fields, fields.max_completion_tokens)),
    )


def outline_request(body: bytes) -> RequestOutline:
    """Read only the model and whether a stream is asked for; raises ApiError 400."""
    return decode_body(body, RequestOutline)


def _refuse_functions(fields: ChatBody) -> None:
    if fields.functions:
        raise unsupported_value("functions", "Use `tools` instead of `functions`.")
    if fields.function_call is not None:
        text = "Use `tool_choice` instead of `function_call`."
        raise unsupported_value("function_call", text)


def _check_with_tools(fields: ChatBody, use: ToolUse) -> None:
    if use.offered and fields.logprobs:
        # Most of such an answer is no content, of which alone `logprobs` tells.
        text = "This release does not support `logprobs` where `tools` may be called."
        raise unsupported_value("logprobs", text)


def _check_ends(fields: ChatBody, *, is_bound_to_end: bool) -> None:
    for param, is_asked in (("min_tokens", fields.min_tokens), ("ignore_eos", fields.ignore_eos)):
        if is_bound_to_end and is_asked:
            text = f"`{param}` cannot be kept where a call or JSON that is whole ends the answer."
            raise unsupported_value(param, text)


def _refuse_other_outputs(fields: ChatBody) -> None:
    asked = {
        "modalities": fields.modalities not in (None, ["text"]),
        "audio": fields.audio is not None,
        "store": bool(fields.store),
        "best_of": fields.best_of not in {None, 1, fields.n},
        "echo": bool(fields.echo),
    }
    for param, is_asked in asked.items():
        if is_asked:
            raise _unsupported(param)


def _unsupported(param: str) -> ApiError:
    return unsupported_value(param, f"This release does not support this value of `{param}`.")
