from typing import Any

import msgspec
import pytest

from meshnet_common.protocol.sampling import MOST_LOGPROBS, Sampling, TokenLogprobs

PLAIN = Sampling(temperature=0.5, top_p=0.9, seed=1)


def changed(**fields: Any) -> Sampling:
    return msgspec.structs.replace(PLAIN, **fields)


def test_what_changes_nothing_is_left_out_on_the_wire() -> None:
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode(PLAIN))
    assert wire == {"temperature": 0.5, "top_p": 0.9, "seed": 1}


@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": 3, "min_p": 0.1, "logit_bias": ((3, 1.0),), "logprobs": 20},
        {"end_ids": (0,)},
    ],
    ids=str,
)
def test_what_looks_at_one_position_needs_no_history(fields: dict[str, Any]) -> None:
    assert not changed(**fields).uses_answer


@pytest.mark.parametrize(
    "fields",
    [
        {"frequency_penalty": -0.1},
        {"presence_penalty": 0.1},
        {"repetition_penalty": 0.9},
        {"end_ids": (0,), "min_tokens": 1},
        {"grammar": "start: /a/"},
    ],
    ids=str,
)
def test_what_looks_back_needs_the_answer(fields: dict[str, Any]) -> None:
    assert changed(**fields).uses_answer


def test_only_the_repetition_penalty_needs_the_prompt() -> None:
    assert changed(repetition_penalty=1.1).uses_prompt
    assert not changed(frequency_penalty=1.0, presence_penalty=1.0, min_tokens=9).uses_prompt


def test_more_alternatives_than_anybody_may_ask_for_are_refused() -> None:
    def read(count: int) -> TokenLogprobs:
        top = [[token_id, -1.0] for token_id in range(count)]
        return msgspec.convert([-0.5, top], TokenLogprobs)

    assert len(read(MOST_LOGPROBS).top) == MOST_LOGPROBS
    with pytest.raises(msgspec.ValidationError):
        read(MOST_LOGPROBS + 1)
