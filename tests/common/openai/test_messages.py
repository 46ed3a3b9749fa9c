from typing import Any

import pytest

from meshnet_common.openai.errors import ApiError
from meshnet_common.openai.messages import ChatMessage
from meshnet_common.openai.requests import parse_chat_request
from tests.common.openai.bodies import body_with_message, chat_body


def refusal(body: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_chat_request(body)
    assert caught.value.status == 400
    return caught.value


def only_message(**message: Any) -> ChatMessage:
    (read,) = parse_chat_request(body_with_message(**message)).messages
    return read


# The inputs are those of llama.cpp's own server suite.
@pytest.mark.parametrize(
    "messages",
    [
        None,
        "string",
        [],
        [{}],
        [{"role": 123, "content": "x"}],
        [{"role": "user", "content": 42}],
        [{"role": "user"}],
        [{"content": "x"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": [{"text": "x"}]}],
        [{"role": "user", "content": {"type": "text", "text": "x"}}],
        [{"role": "wizard", "content": "x"}],
        ["hello"],
    ],
)
def test_messages_of_a_wrong_shape_are_refused_with_their_place(messages: Any) -> None:
    param = refusal(chat_body(messages=messages)).body.param

    assert param is not None
    assert param.startswith("messages")


def test_developer_is_another_name_of_system() -> None:
    assert only_message(role="developer", content="Be brief.").role == "system"


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_roles_that_templates_know_stay(role: str) -> None:
    assert only_message(role=role, content="").role == role


def test_text_parts_become_one_string() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]

    assert only_message(role="user", content=parts).content == "one\ntwo"


def test_a_name_is_kept() -> None:
    assert only_message(role="user", content="x", name="Ada").name == "Ada"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "tool", "content": "x", "tool_call_id": "1"}, "messages[0].role"),
        ({"role": "function", "content": "x", "name": "f"}, "messages[0].role"),
        (
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
            "messages[0].tool_calls",
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "messages[0].content[0].type",
        ),
    ],
)
def test_turns_that_this_release_cannot_show_a_model_are_refused(
    message: dict[str, Any], param: str
) -> None:
    error = refusal(body_with_message(**message))

    assert (error.body.code, error.body.param) == ("unsupported_value", param)


def test_an_empty_list_of_tool_calls_is_no_tool_call() -> None:
    assert only_message(role="assistant", content="x", tool_calls=[]).content == "x"
