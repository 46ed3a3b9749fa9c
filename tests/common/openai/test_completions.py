import json
from typing import Any

import pytest

from meshnet_common.openai.completions import (
    MAX_COMPLETIONS,
    MAX_OPENING_CHARACTERS,
    CompletionRequest,
    parse_completion_request,
)
from meshnet_common.openai.errors import ApiError


def parsed(**fields: Any) -> CompletionRequest:
    body = {"model": "smol", "prompt": "Once", **fields}
    return parse_completion_request(json.dumps(body).encode())


def test_what_is_left_open_has_openais_defaults() -> None:
    request = parsed()
    assert request.prompts == ("Once",)
    assert (request.max_tokens, request.n, request.temperature) == (16, 1, 1.0)
    unset = (request.echo, request.stream, request.logprobs, request.include_usage)
    assert not any(unset)


@pytest.mark.parametrize("field", ["max_tokens", "n", "suffix", "best_of", "echo", "logprobs"])
def test_null_is_the_same_as_nothing(field: str) -> None:
    assert parsed(**{field: None}) == parsed()


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [(["a", "b"], ("a", "b")), ([1, 2], ((1, 2),)), ([[1], [2, 3]], ((1,), (2, 3)))],
)
def test_prompts_are_texts_or_token_ids(prompt: Any, prompts: Any) -> None:
    assert parsed(prompt=prompt).prompts == prompts


@pytest.mark.parametrize("number", [0, 5])
def test_logprobs_is_a_number_of_others(number: int) -> None:
    request = parsed(logprobs=number)
    assert (request.logprobs, request.top_logprobs) == (True, number)


@pytest.mark.parametrize(
    "fields",
    [{"best_of": 1}, {"best_of": 2, "n": 2}, {"suffix": ""}, {"n": MAX_COMPLETIONS}, {"tools": []}],
)
def test_what_happens_anyway_may_be_asked_for(fields: dict[str, Any]) -> None:
    assert parsed(**fields).prompts == ("Once",)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"suffix": "end"}, "suffix", "unsupported_value"),
        ({"best_of": 3}, "best_of", "unsupported_value"),
        ({"best_of": 3, "n": 2}, "best_of", "unsupported_value"),
        ({"echo": True, "logprobs": 0}, "echo", "unsupported_value"),
        ({"prompt": ["a"] * (MAX_COMPLETIONS + 1)}, "prompt", "unsupported_value"),
        ({"prompt": ["a"] * 9, "n": 2}, "prompt", "unsupported_value"),
        ({"n": MAX_COMPLETIONS + 1}, "n", "unsupported_value"),
        ({"logprobs": 6}, "logprobs", None),
        ({"logprobs": -1}, "logprobs", None),
        ({"logprobs": True}, "logprobs", None),
        ({"max_tokens": 0}, "max_tokens", None),
        ({"min_tokens": 17}, "min_tokens", None),
        ({"prompt": []}, "prompt", None),
        ({"prompt": ""}, "prompt", None),
        ({"prompt": None}, "prompt", None),
        ({"prompt": [-1]}, "prompt[0]", None),
        ({"n": 2, "temperature": 0}, "n", None),
        ({"stream_options": {}}, "stream_options", None),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    fields: dict[str, Any], param: str, code: str | None
) -> None:
    with pytest.raises(ApiError) as caught:
        parsed(**fields)
    assert caught.value.status == 400
    assert (caught.value.body.param, caught.value.body.code) == (param, code)


def test_a_prompt_is_not_left_out() -> None:
    with pytest.raises(ApiError) as caught:
        parse_completion_request(b'{"model": "smol"}')
    assert caught.value.body.param == "prompt"


def test_texts_that_begin_alike_have_the_same_turns() -> None:
    long = "x" * MAX_OPENING_CHARACTERS
    assert list(parsed(prompt=f"{long}a").turns()) == list(parsed(prompt=f"{long}b").turns())
    assert list(parsed(prompt=[1, 2]).turns()) != list(parsed(prompt=[1, 3]).turns())
