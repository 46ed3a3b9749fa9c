import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshnet_common.openai.errors import ApiError
from meshnet_common.openai.formats import JsonObject, JsonSchema
from meshnet_common.openai.requests import (
    ChatRequest,
    RequestOutline,
    outline_request,
    parse_chat_request,
)
from meshnet_common.openai.tools import NO_TOOLS
from tests.common.openai.bodies import USER_TURN, chat_body, raw_body

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
FIELDS = sorted(
    {
        "model", "messages", "max_completion_tokens", "max_tokens", "temperature", "top_p", "seed",
        "stop", "stream", "stream_options", "ignore_eos", "min_tokens", "n", "logprobs",
        "top_logprobs", "logit_bias", "frequency_penalty", "presence_penalty", "top_k", "min_p",
        "repetition_penalty", "response_format", "tools", "tool_choice", "functions",
        "parallel_tool_calls", "function_call", "modalities", "audio", "store", "user", "metadata",
    }
)  # fmt: skip


def refusal(body: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_chat_request(body)
    assert caught.value.status == 400
    assert caught.value.body.type == "invalid_request_error"
    return caught.value


def test_defaults_are_those_of_the_public_api() -> None:
    request = parse_chat_request(chat_body())

    assert (request.temperature, request.top_p, request.seed) == (1.0, 1.0, None)
    assert (request.max_tokens, request.stop, request.stream) == (None, (), False)


def test_null_means_that_a_field_was_left_out() -> None:
    nulls = {field: None for field in FIELDS if field not in {"model", "messages"}}

    assert parse_chat_request(chat_body(**nulls)) == parse_chat_request(chat_body())


@pytest.mark.parametrize(
    ("fields", "limit"),
    [({"max_tokens": 5}, 5), ({"max_completion_tokens": 6}, 6),
     ({"max_tokens": 5, "max_completion_tokens": 6}, 6)],
)  # fmt: skip
def test_the_newer_token_limit_wins(fields: dict[str, Any], limit: int) -> None:
    assert parse_chat_request(chat_body(**fields)).max_tokens == limit


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", ""), ("model", None), ("model", 3), ("model", "m" * 257),
        ("max_tokens", 2**63), ("max_completion_tokens", 0), ("max_completion_tokens", 2**63),
        ("max_completion_tokens", 1e308), ("max_completion_tokens", 1.0),
        ("temperature", 999999), ("top_p", -1), ("seed", 2**63), ("stop", ["a", ""]),
        ("stream", "true"), ("stream", 1),
        ("logprobs", 1), ("logprobs", "true"), ("logprobs", 2.0), ("top_logprobs", 0),
        ("top_logprobs", 21), ("top_logprobs", -1), ("top_logprobs", 2.0), ("top_logprobs", True),
        ("n", 0), ("min_tokens", -1), ("logit_bias", {"x": 1}),
        ("tools", []), ("tools", "x"), ("tool_choice", "auto"), ("stream_options", {}),
        ("response_format", {}), ("response_format", {"type": "poem"}),
        ("response_format", {"type": "json_schema"}),
        ("response_format", {"type": "json_schema", "json_schema": 3}),
    ],
)  # fmt: skip
def test_a_value_out_of_bounds_is_refused_by_name(field: str, value: object) -> None:
    error = refusal(chat_body(**{field: value}))

    assert error.body.param is not None
    assert error.body.param.startswith(field)
    assert error.body.code is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 5),
        ("functions", [{"name": "f"}]),
        ("function_call", "auto"),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "x"}),
        ("store", True),
    ],
)
def test_what_this_release_does_not_do_is_refused_and_never_ignored(
    field: str, value: object
) -> None:
    error = refusal(chat_body(**{field: value}))

    assert (error.body.code, error.body.param) == ("unsupported_value", field)


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1},
        {"logprobs": False},
        {"logit_bias": {}},
        {"frequency_penalty": 0, "presence_penalty": 0.0, "repetition_penalty": 1.0},
        {"top_k": -1, "min_p": 0},
        {"response_format": {"type": "text"}},
        {"modalities": ["text"]},
        {"functions": []},
        {"store": False, "user": "u", "metadata": {"a": "b"}, "service_tier": "auto"},
        {"prompt_cache_key": "k", "parallel_tool_calls": True, "a_field_of_next_year": [1]},
    ],
)
def test_fields_that_change_nothing_are_accepted(fields: dict[str, Any]) -> None:
    assert parse_chat_request(chat_body(**fields)) == parse_chat_request(chat_body())


POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


def test_a_format_is_read_with_its_schema() -> None:
    described = {"name": "point", "schema": {**POINT, "title": "Point"}, "strict": True}
    body = chat_body(response_format={"type": "json_schema", "json_schema": described})

    expected = JsonSchema(name="point", schema=POINT, strict=True)
    assert parse_chat_request(body).response_format == expected
    body = chat_body(response_format={"type": "json_object"})
    assert parse_chat_request(body).response_format == JsonObject()


def test_a_keyword_that_is_not_kept_is_refused_by_its_name() -> None:
    described = {"name": "point", "schema": {**POINT, "uniqueItems": True}}
    error = refusal(chat_body(response_format={"type": "json_schema", "json_schema": described}))

    assert error.body.param == "response_format.json_schema.schema"
    assert "`uniqueItems`" in error.body.message


@pytest.mark.parametrize("field", [{"min_tokens": 4}, {"ignore_eos": True}])
def test_json_ends_where_it_is_whole(field: dict[str, Any]) -> None:
    error = refusal(chat_body(response_format={"type": "json_object"}, **field))

    assert error.body.param == next(iter(field))


TOOL = {"type": "function", "function": {"name": "look"}}
LOOK = {"type": "function", "function": {"name": "look"}}


def test_tools_are_read_with_what_is_said_of_them() -> None:
    fields = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    use = parse_chat_request(chat_body(**fields)).tool_use

    assert ([tool.name for tool in use.offered], use.must_call) == (["look"], ("look",))
    assert not use.is_parallel
    assert parse_chat_request(chat_body()).tool_use == NO_TOOLS
    assert parse_chat_request(chat_body(tools=[TOOL], tool_choice="none")).tool_use == NO_TOOLS


@pytest.mark.parametrize(("old", "new"), [("functions", "tools"), ("function_call", "tool_choice")])
def test_fields_of_the_past_name_those_of_today(old: str, new: str) -> None:
    assert (
        f"`{new}`"
        in refusal(chat_body(**{old: [{}] if old == "functions" else "auto"})).body.message
    )


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("logprobs", {"logprobs": True}),
        ("min_tokens", {"min_tokens": 2, "tool_choice": "required"}),
        ("ignore_eos", {"ignore_eos": True, "tool_choice": LOOK}),
    ],
)
def test_what_does_not_go_with_calls_is_refused_by_name(param: str, fields: dict[str, Any]) -> None:
    error = refusal(chat_body(tools=[TOOL], **fields))

    assert (error.body.code, error.body.param) == ("unsupported_value", param)
    fields = {**fields, "tool_choice": "none"}
    assert parse_chat_request(chat_body(tools=[TOOL], **fields)).tool_use == NO_TOOLS


def test_stream_options_need_a_stream() -> None:
    options = {"include_usage": True, "a_field_of_next_year": 1}

    assert parse_chat_request(chat_body(stream=True, stream_options=options)).include_usage
    assert refusal(chat_body(stream_options=options)).body.param == "stream_options"


def test_what_load_generators_use_is_read() -> None:
    request = parse_chat_request(chat_body(ignore_eos=True, min_tokens=8, max_tokens=8))

    assert (request.ignore_eos, request.min_tokens) == (True, 8)


def test_others_that_were_likely_are_told_only_beside_the_tokens() -> None:
    request = parse_chat_request(chat_body(logprobs=True, top_logprobs=0))
    assert (request.logprobs, request.top_logprobs) == (True, 0)
    assert parse_chat_request(chat_body(logprobs=True, top_logprobs=20)).top_logprobs == 20
    assert refusal(chat_body(logprobs=False, top_logprobs=2)).body.param == "top_logprobs"


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "1" * 400])
def test_numbers_that_no_client_means_are_refused(value: str) -> None:
    for field in ("temperature", "max_tokens", "seed"):
        refusal(raw_body(f'"{field}": {value}'))


def test_an_outline_reads_the_model_and_the_stream_only() -> None:
    body = json.dumps({"model": "smol", "messages": "whatever", "stream": True}).encode()

    assert outline_request(body) == RequestOutline("smol", stream=True)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"model": 1}', b'{"messages": []}'])
def test_an_outline_needs_a_model(body: bytes) -> None:
    with pytest.raises(ApiError):
        outline_request(body)


@given(st.dictionaries(st.sampled_from(FIELDS), ANY_JSON))
@example({"model": "m", "messages": [USER_TURN], "seed": 10**400})
def test_any_json_object_is_a_request_or_a_clear_refusal(fields: dict[str, Any]) -> None:
    _accepted_or_refused(json.dumps(fields).encode())
    _accepted_or_refused(chat_body(**fields))


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_are_a_request_or_a_clear_refusal(body: bytes) -> None:
    _accepted_or_refused(body)


def _accepted_or_refused(body: bytes) -> None:
    result = _parsed(body)

    if isinstance(result, ApiError):
        assert result.status == 400
        assert len(result.to_json()) < 4000


def _parsed(body: bytes) -> ChatRequest | ApiError:
    try:
        return parse_chat_request(body)
    except ApiError as error:
        return error
