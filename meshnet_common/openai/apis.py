"""The APIs by which text is asked for: where each is found, who reads it, how its streams end."""

from collections.abc import Callable
from dataclasses import dataclass

from meshnet_common.openai.completions import CompletionRequest, parse_completion_request
from meshnet_common.openai.requests import ChatRequest, parse_chat_request
from meshnet_common.openai.response_request import ResponseRequest, parse_response_request
from meshnet_common.openai.stream_endings import DoneEnding, NumberedEnding, StreamEnding

VERSION = "/v1"
COUNTING = "/input_tokens"

AnyRequest = ChatRequest | ResponseRequest | CompletionRequest


@dataclass(frozen=True, slots=True)
class Api:
    """One of them; `parse` raises ApiError 400 and nothing else."""

    url_path: str
    parse: Callable[[bytes], AnyRequest]
    ending: StreamEnding

    @property
    def url_paths(self) -> tuple[str, str]:
        """Where it answers: also without the version."""
        return self.url_path, self.url_path.removeprefix(VERSION)

    @property
    def counting_paths(self) -> tuple[str, str]:
        """Where the tokens of its prompts are counted, if they are."""
        versioned, short = self.url_paths
        return f"{versioned}{COUNTING}", f"{short}{COUNTING}"


CHAT = Api(f"{VERSION}/chat/completions", parse_chat_request, DoneEnding())
COMPLETIONS = Api(f"{VERSION}/completions", parse_completion_request, DoneEnding())
RESPONSES = Api(f"{VERSION}/responses", parse_response_request, NumberedEnding())

APIS = (CHAT, COMPLETIONS, RESPONSES)
COUNTED_APIS = (CHAT, RESPONSES)
