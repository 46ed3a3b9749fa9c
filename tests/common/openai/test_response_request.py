import json
from typing import Any

import pytest

from meshnet_common.openai.errors import ApiError
from meshnet_common.openai.formats import TEXT, JsonObject, JsonSchema
from meshnet_common.openai.response_request import ResponseRequest, parse_response_request
from meshnet_common.openai.tools import NO_TOOLS

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}}
WAIT = {"type": "function", "name": "wait"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


def parsed(**fields: Any) -> ResponseRequest:
    body = {"model": "smol", "input": "Hi", **fields}
    return parse_response_request(json.dumps(body).encode())


def test_what_is_left_open_has_openais_defaults() -> None:
    request = parsed()
    assert [message.text for message in request.messages] == ["Hi"]
    assert (request.max_tokens, request.temperature, request.n) == (None, 1.0, 1)
    assert (request.tool_use, request.response_format) == (NO_TOOLS, TEXT)
    assert not request.stream


def test_a_stream_always_ends_with_what_it_has_cost() -> None:
    assert parsed(stream=True).include_usage


def test_what_is_asked_for_is_read() -> None:
    request = parsed(max_output_tokens=5, temperature=0, top_p=0.5, instructions="Be kind.")
    assert (request.max_tokens, request.temperature, request.top_p) == (5, 0.0, 0.5)
    assert request.messages[0].text == "Be kind."


@pytest.mark.parametrize(
    "fields",
    [
        {"store": False},
        {"background": False},
        {"reasoning": None},
        {"reasoning": {"effort": None}},
        {"metadata": {"a": "b"}, "user": "me"},
        {"truncation": "disabled"},
        {"include": ["reasoning.encrypted_content"]},
        {"tools": [], "tool_choice": "auto"},
        {"text": {"format": {"type": "text"}}},
        {"service_tier": "auto"},
    ],
)
def test_what_changes_nothing_is_accepted(fields: dict[str, Any]) -> None:
    request = parsed(**fields)
    assert (request.tool_use, request.response_format) == (NO_TOOLS, TEXT)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"conversation": {"id": "conv_1"}}, "conversation"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"reasoning": {"effort": "low"}}, "reasoning"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ],
)
def test_what_this_release_does_not_do_is_refused_by_name(
    fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(ApiError) as caught:
        parsed(**fields)
    assert (caught.value.status, caught.value.body.param) == (400, param)


@pytest.mark.parametrize(
    ("choice", "must_call", "offered"),
    [
        (None, (), ("look", "wait")),
        ("required", ("look", "wait"), ("look", "wait")),
        ({"type": "function", "name": "wait"}, ("wait",), ("look", "wait")),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "wait"}],
            },
            (),
            ("wait",),
        ),
        ("none", (), ()),
    ],
)
def test_flat_tools_mean_what_nested_ones_do(
    choice: Any, must_call: tuple[str, ...], offered: tuple[str, ...]
) -> None:
    use = parsed(tools=[TOOL, WAIT], tool_choice=choice).tool_use
    assert use.must_call == must_call
    assert tuple(tool.name for tool in use.offered) == offered


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [WAIT, {**TOOL, "name": "a b"}]}, "tools[1].name"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tools": [{**TOOL, "parameters": {"type": "string"}}]}, "tools[0].parameters.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.tools"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.name"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"input": []}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)
def test_a_fault_is_named_by_its_place_in_the_flat_body(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        parsed(**fields)
    assert (caught.value.status, caught.value.body.param) == (400, param)
    assert ".function" not in caught.value.body.message
    assert ".json_schema" not in caught.value.body.message


def test_flat_formats_mean_what_nested_ones_do() -> None:
    assert parsed(text={"format": {"type": "json_object"}}).response_format == JsonObject()
    flat = {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}
    kept = parsed(text={"format": flat}).response_format
    assert isinstance(kept, JsonSchema)
    assert (kept.name, kept.strict) == ("a", True)
