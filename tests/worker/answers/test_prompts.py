import json
from typing import Any

import pytest

from meshnet_common.openai.completions import parse_completion_request
from meshnet_common.openai.errors import ApiError, ContextLengthBody
from meshnet_common.openai.requests import parse_chat_request
from meshnet_worker.answers.prompts import Prompt, count_prompts, read_prompts
from meshnet_worker.text.tokenizer import TextCodec
from tests.common.builders import preset
from tests.common.openai.bodies import chat_body
from tests.worker.models import CONTEXT_TOKENS, WORDS


def prompts(codec: TextCodec, prompt: Any, **fields: Any) -> tuple[Prompt, ...]:
    body = json.dumps({"model": "tiny", "prompt": prompt, **fields}).encode()
    return read_prompts(parse_completion_request(body), codec, preset())


def test_a_chat_is_one_prompt(codec: TextCodec) -> None:
    body = chat_body(messages=[{"role": "user", "content": "w5 w6"}])
    assert read_prompts(parse_chat_request(body), codec, preset()) == (Prompt((5, 6)),)


def test_a_prompt_may_be_counted_that_is_too_long_for_an_answer(codec: TextCodec) -> None:
    tokens = 100 * CONTEXT_TOKENS
    body = chat_body(messages=[{"role": "user", "content": "w1 " * tokens}])
    assert count_prompts(parse_chat_request(body), codec) == tokens


@pytest.mark.parametrize("times", [1, 100])
def test_of_a_prompt_that_is_clearly_too_long_only_the_beginning_is_read(
    times: int, codec: TextCodec
) -> None:
    with pytest.raises(ApiError) as refused:
        prompts(codec, "w1 " * (times * CONTEXT_TOKENS))
    body = refused.value.body
    assert isinstance(body, ContextLengthBody)
    assert ("at least" in body.message) == (times > 1)
    assert CONTEXT_TOKENS <= body.n_prompt_tokens <= 10 * CONTEXT_TOKENS
    assert str(body.n_prompt_tokens) in body.message


@pytest.mark.parametrize(
    ("given", "ids", "echoes"),
    [
        ("w5 w6", [(5, 6)], ["w5 w6"]),
        (["w5", "w6 w7"], [(5,), (6, 7)], ["w5", "w6 w7"]),
        ([5, 6], [(5, 6)], ["w5 w6"]),
        ([[5], [6, 7]], [(5,), (6, 7)], ["w5", "w6 w7"]),
    ],
)
def test_texts_and_token_ids_are_read_and_said_again_where_that_is_asked_for(
    given: Any, ids: list[tuple[int, ...]], echoes: list[str], codec: TextCodec
) -> None:
    assert [one.ids for one in prompts(codec, given)] == ids
    assert [one.echo for one in prompts(codec, given)] == [""] * len(ids)
    assert [one.echo for one in prompts(codec, given, echo=True)] == echoes


@pytest.mark.parametrize("echo", [True, False])
@pytest.mark.parametrize(
    ("given", "param", "code"),
    [
        ([WORDS], "prompt", None),
        ([[1], [2**31 - 1]], "prompt[1]", None),
        (" ", "prompt", None),
        ([1] * CONTEXT_TOKENS, "prompt", "context_length_exceeded"),
        (["w1", "w1 " * CONTEXT_TOKENS], "prompt[1]", "context_length_exceeded"),
    ],
)
def test_what_the_model_cannot_take_is_refused(
    given: Any, param: str, code: str | None, echo: bool, codec: TextCodec
) -> None:
    with pytest.raises(ApiError) as caught:
        prompts(codec, given, echo=echo)
    body = caught.value.body
    assert (caught.value.status, body.param, body.code) == (400, param, code)
