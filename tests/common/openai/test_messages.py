from typing import Any

import pytest

from meshnet_common.openai.errors import ApiError
from meshnet_common.openai.messages import ChatMessage
from meshnet_common.openai.requests import parse_chat_request
from tests.common.openai.bodies import USER_TURN, body_with_message, chat_body


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
        ({"role": "function", "content": "x", "name": "f"}, "messages[0].role"),
        (
            {"role": "assistant", "content": None, "function_call": {"name": "f"}},
            "messages[0].function_call",
        ),
        ({"role": "assistant", "content": None, "audio": {"id": "a"}}, "messages[0].audio"),
        (
            {"role": "assistant", "tool_calls": [{"id": "1", "type": "custom"}]},
            "messages[0].tool_calls[0].type",
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


def test_refused_fields_of_the_past_name_those_of_today() -> None:
    old = {"role": "assistant", "content": None, "function_call": {"name": "f"}}

    assert "tool_calls" in refusal(body_with_message(**old)).body.message
    result = {"role": "function", "content": "x", "name": "f"}
    assert "tool_call_id" in refusal(body_with_message(**result)).body.message


@pytest.mark.parametrize("nothing", [[], None])
def test_an_empty_list_of_tool_calls_is_no_tool_call(nothing: Any) -> None:
    message = only_message(role="assistant", content="x", tool_calls=nothing)

    assert (message.content, message.tool_calls) == ("x", ())


def call(call_id: str = "c1", arguments: str = '{"city": "Bonn"}', **function: Any) -> Any:
    wanted = {"name": "get_weather", "arguments": arguments, **function}
    return {"id": call_id, "type": "function", "function": wanted}


def calling(*calls: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **fields}


def result(call_id: Any = "c1", content: Any = "Rain.") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def read(*messages: dict[str, Any]) -> tuple[ChatMessage, ...]:
    return parse_chat_request(chat_body(messages=[USER_TURN, *messages])).messages[1:]


def test_a_call_and_what_it_gave_are_read_with_arguments_as_values() -> None:
    caller, answer = read(calling(call()), result())

    (one,) = caller.tool_calls
    assert (caller.content, caller.text) == (None, "")
    assert (one.id, one.function.name, one.function.arguments) == (
        "c1",
        "get_weather",
        {"city": "Bonn"},
    )
    assert answer == ChatMessage(
        role="tool", content="Rain.", name="get_weather", tool_call_id="c1"
    )


# vLLM answered a history with "null" with an error.
@pytest.mark.parametrize("arguments", ["", "null", "{}", "  ", " {} "])
def test_no_arguments_may_be_written_in_every_way(arguments: str) -> None:
    (caller,) = read(calling(call(arguments=arguments)))

    assert caller.tool_calls[0].function.arguments == {}


@pytest.mark.parametrize("content", ["", "I look.", None])
def test_a_caller_may_say_something_or_nothing(content: str | None) -> None:
    (caller,) = read(calling(call(), content=content))

    assert caller.content == content


def test_a_caller_may_leave_its_content_out() -> None:
    turn = calling(call())
    del turn["content"]

    assert read(turn)[0].content is None


def test_several_calls_are_answered_in_any_order() -> None:
    turns = read(
        calling(call("a"), call("b", name="add")), result("b"), result("a"), calling(call("c"))
    )

    assert [turn.name for turn in turns[1:3]] == ["add", "get_weather"]


TOOL_CALLS = "messages[1].tool_calls"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([calling(call(arguments="{"))], f"{TOOL_CALLS}[0].function.arguments"),
        ([calling(call(arguments="[1]"))], f"{TOOL_CALLS}[0].function.arguments"),
        ([calling(call(arguments="3"))], f"{TOOL_CALLS}[0].function.arguments"),
        ([calling(call(arguments='{"a": NaN}'))], f"{TOOL_CALLS}[0].function.arguments"),
        (
            [calling(call(arguments='{"a":' + "[" * 100_000))],
            f"{TOOL_CALLS}[0].function.arguments",
        ),
        ([calling(call(), call("d", name="a b"))], f"{TOOL_CALLS}[1].function.name"),
        ([calling({"id": "c1", "type": "function"})], f"{TOOL_CALLS}[0].function"),
        ([{"role": "user", "content": "x", "tool_calls": [call()]}], TOOL_CALLS),
        ([result()], "messages[1].role"),
        ([calling(call()), USER_TURN, result()], "messages[3].role"),
        ([calling(call()), result("c2")], "messages[2].tool_call_id"),
        ([calling(call()), calling(call("c2")), result("c1")], "messages[3].tool_call_id"),
        ([calling(call()), result(None)], "messages[2].tool_call_id"),
        ([calling(call()), result(content=None)], "messages[2].content"),
    ],
)
def test_calls_that_do_not_fit_together_are_refused_with_their_place(
    messages: list[dict[str, Any]], param: str
) -> None:
    assert refusal(chat_body(messages=[USER_TURN, *messages])).body.param == param


@pytest.mark.parametrize(
    "message",
    [
        calling({"id": "", "function": {"name": "f", "arguments": "{}"}}),
        calling({"id": "x" * 257, "function": {"name": "f", "arguments": "{}"}}),
        calling({"id": "c", "function": {"name": "f", "arguments": {}}}),
        calling({"id": "c", "function": {"name": "f"}}),
        calling({"function": {"name": "f", "arguments": "{}"}}),
        calling(3),
        calling(call(), content=3),
        result("x" * 257),
    ],
)
def test_calls_of_a_wrong_shape_are_refused(message: dict[str, Any]) -> None:
    param = refusal(chat_body(messages=[USER_TURN, message])).body.param

    assert (param or "").startswith("messages")


def test_a_result_may_be_text_parts() -> None:
    parts = [{"type": "text", "text": "Rain."}, {"type": "text", "text": "Wind."}]

    assert read(calling(call()), result(content=parts))[1].content == "Rain.\nWind."
