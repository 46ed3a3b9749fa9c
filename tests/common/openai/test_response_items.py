from typing import Any

import msgspec
import pytest

from meshnet_common.openai.errors import ApiError
from meshnet_common.openai.messages import ChatMessage
from meshnet_common.openai.response_items import InputItem, read_input

CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "Rain."}
USER = {"role": "user", "content": "Hi"}


def read(*items: Any, instructions: str | None = None) -> list[ChatMessage]:
    return read_input(msgspec.convert(items, list[InputItem]), instructions)


def test_a_text_is_what_the_user_says() -> None:
    assert read_input("Hi", None) == [ChatMessage(role="user", content="Hi")]
    assert [message.role for message in read_input("Hi", "Be kind.")] == ["system", "user"]


def test_messages_have_texts_or_parts_of_text() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}]
    messages = read(
        {"role": "developer", "content": "Be kind."},
        {"type": "message", "role": "user", "content": parts},
        {"type": "message", "id": "msg_1", "role": "assistant", "content": "So."},
    )
    assert [(one.role, one.content) for one in messages] == [
        ("system", "Be kind."),
        ("user", "a\nb"),
        ("assistant", "So."),
    ]


def test_calls_of_one_turn_are_one_message_and_each_output_names_its_function() -> None:
    said = {"role": "assistant", "content": "Let me see."}
    messages = read(USER, said, CALL, {**CALL, "call_id": "c2", "name": "wait"}, OUTPUT, CALL)
    assert [one.role for one in messages] == ["user", "assistant", "tool", "assistant"]
    assert [call.function.name for call in messages[1].tool_calls] == ["look", "wait"]
    assert messages[1].content == "Let me see."
    assert (messages[2].name, messages[2].content, messages[2].tool_call_id) == (
        "look",
        "Rain.",
        "c1",
    )
    assert messages[3].content is None


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([], "input"),
        ([{"content": "Hi"}], "input[0].role"),
        ([{"role": "tool", "content": "Hi"}], "input[0].role"),
        ([USER, {"role": "user"}], "input[1].content"),
        ([{"role": "user", "content": []}], "input[0].content"),
        (
            [{"role": "user", "content": [{"type": "input_image"}]}],
            "input[0].content[0].type",
        ),
        (
            [{"role": "user", "content": [{"type": "input_text"}]}],
            "input[0].content[0].text",
        ),
        ([{"type": "reasoning"}], "input[0].type"),
        ([{**CALL, "arguments": "[]"}], "input[0].arguments"),
        ([{**CALL, "arguments": None}], "input[0].arguments"),
        ([{**CALL, "name": "a b"}], "input[0].name"),
        ([{**CALL, "call_id": None}], "input[0].call_id"),
        ([USER, OUTPUT], "input[1].call_id"),
        ([CALL, {**OUTPUT, "output": None}], "input[1].output"),
    ],
)
def test_what_is_no_item_is_refused_by_its_place(items: list[Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read(*items)
    assert (caught.value.status, caught.value.body.param) == (400, param)
