"""What every request for generated text comes to, whatever API it came by.

A Head Worker and a Tracker need to know no more of a request than this, besides its prompt.
"""

from typing import ClassVar

import msgspec

from meshnet_common.openai.errors import invalid_request
from meshnet_common.openai.formats import TEXT, ResponseFormat
from meshnet_common.openai.generation_options import GenerationOptions
from meshnet_common.openai.tools import NO_TOOLS, ToolUse


class StreamOptions(msgspec.Struct, frozen=True):
    """The field `stream_options` as clients send it."""

    include_usage: bool | None = False


class AnswerRequest(GenerationOptions, frozen=True, kw_only=True):
    """A request after validation; None means that the client left it open."""

    ID_PREFIX: ClassVar[str]
    """What the names of its answers begin with."""
    PROMPT_FIELD: ClassVar[str]
    """The field of the body that the prompt is made of."""
    FORMAT_FIELD: ClassVar[str] = "response_format"
    """The field of the body that says what an answer has to be."""

    model: str
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    """Whether each token is told with how likely it was."""
    top_logprobs: int = 0
    """With so many others that were likely in its place."""
    tool_use: ToolUse = NO_TOOLS
    response_format: ResponseFormat = TEXT

    @property
    def prompt_count(self) -> int:
        """How many prompts there are, each with `n` choices of its own."""
        return 1

    @property
    def rules_field(self) -> str:
        """The field of the body that holds the schemas which an answer keeps to."""
        return "tools" if self.tool_use.offered else self.FORMAT_FIELD

    @property
    def choice_count(self) -> int:
        """How many choices the answer has, over all prompts."""
        return self.n * self.prompt_count


def check_stream_options(options: StreamOptions | None, stream: bool | None) -> bool:
    """Return whether a stream tells its usage; raises ApiError 400 for options without one."""
    if options is not None and not stream:
        raise invalid_request("`stream_options` needs `stream: true`.", "stream_options")
    return bool(options and options.include_usage)
