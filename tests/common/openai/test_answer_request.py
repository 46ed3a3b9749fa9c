import msgspec
import pytest

from meshnet_common.openai.answer_request import StreamOptions, check_stream_options
from meshnet_common.openai.completions import CompletionRequest
from meshnet_common.openai.errors import ApiError
from meshnet_common.openai.requests import ChatRequest
from meshnet_common.openai.tools import FunctionTool, ToolUse


def test_every_prompt_has_all_choices() -> None:
    request = CompletionRequest(model="smol", prompts=("a", "b", "c"), n=2)
    assert (request.prompt_count, request.choice_count) == (3, 6)


def test_schemas_are_where_the_tools_are_or_else_the_format() -> None:
    plain = ChatRequest(model="smol", messages=())
    tool = FunctionTool(name="f", parameters={})
    offering = msgspec.structs.replace(plain, tool_use=ToolUse(offered=(tool,)))
    assert [plain.rules_field, offering.rules_field] == ["response_format", "tools"]


@pytest.mark.parametrize(
    ("options", "stream", "tells"),
    [
        (None, True, False),
        (None, None, False),
        (StreamOptions(), True, False),
        (StreamOptions(include_usage=None), True, False),
        (StreamOptions(include_usage=True), True, True),
    ],
)
def test_usage_is_told_where_it_was_asked_for(
    options: StreamOptions | None, stream: bool | None, tells: bool
) -> None:
    assert check_stream_options(options, stream) is tells


@pytest.mark.parametrize("stream", [False, None])
def test_options_of_a_stream_need_one(stream: bool | None) -> None:
    with pytest.raises(ApiError) as caught:
        check_stream_options(StreamOptions(), stream)
    assert caught.value.body.param == "stream_options"
