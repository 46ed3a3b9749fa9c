import json
from typing import Any

from openai.types import Completion

from meshnet_common.openai.completion_writer import CompletionWriter
from meshnet_common.openai.pieces import (
    FinishReason,
    TextPiece,
    TokenLogprob,
    TopLogprob,
    WholeChoice,
)
from meshnet_common.openai.writer import AnswerIdentity, Usage

IDENTITY = AnswerIdentity("cmpl-1", 1_700_000_000, "smol", "fp_1")
USAGE = Usage.of(prompt_tokens=3, completion_tokens=4)
HALF = TokenLogprob("", -0.5, (0xC3,))
OTHER_HALF = TokenLogprob("é", -0.25, (0xA9,), (TopLogprob("ü", -1.5, (0xBC,)),))
SPELLED = TextPiece("é", (HALF, OTHER_HALF))
A = TextPiece("ab", (TokenLogprob("ab", -1.0, (97, 98), (TopLogprob("ab", -1.0, (97, 98)),)),))


def choice_in(payload: bytes) -> Any:
    (choice,) = json.loads(payload)["choices"]
    # The client's type is that of whole answers, and its streams are not validated.
    Completion.model_validate_json(payload.replace(b'_reason":null', b'_reason":"stop"'))
    return choice


def test_a_stream_begins_with_its_first_text_and_ends_with_none() -> None:
    writer = CompletionWriter(IDENTITY)
    assert writer.begin(0) == ()
    (told,), (finish,) = (
        writer.pieces(1, [TextPiece("a"), TextPiece("b")]),
        writer.finish(1, FinishReason.LENGTH),
    )
    assert choice_in(told) == {"index": 1, "text": "ab", "logprobs": None, "finish_reason": None}
    assert choice_in(finish)["text"] == ""
    assert choice_in(finish)["finish_reason"] == "length"
    assert "usage" not in json.loads(told)


def test_usage_is_null_in_every_chunk_but_the_last() -> None:
    writer = CompletionWriter(IDENTITY, include_usage=True)
    (told,), (last,) = writer.pieces(0, [TextPiece("a")]), writer.usage(USAGE)
    assert json.loads(told)["usage"] is None
    assert json.loads(last)["choices"] == []
    assert json.loads(last)["usage"]["total_tokens"] == 7
    assert json.loads(last)["object"] == "text_completion"


def test_tokens_are_told_in_the_older_shape_with_their_places() -> None:
    writer = CompletionWriter(IDENTITY, has_logprobs=True)
    first, second = (choice_in(writer.pieces(0, [one])[0]) for one in (A, SPELLED))
    assert first["logprobs"] == {
        "tokens": ["ab"],
        "token_logprobs": [-1.0],
        "top_logprobs": [{"ab": -1.0}],
        "text_offset": [0],
    }
    assert second["logprobs"] == {
        "tokens": ["", "é"],
        "token_logprobs": [-0.5, -0.25],
        "top_logprobs": [{"": -0.5}, {"ü": -1.5, "é": -0.25}],
        "text_offset": [2, 2],
    }


def test_every_choice_counts_its_own_characters() -> None:
    writer = CompletionWriter(IDENTITY, has_logprobs=True)
    writer.pieces(0, [A])
    assert choice_in(writer.pieces(1, [A])[0])["logprobs"]["text_offset"] == [0]


def test_a_whole_answer_says_what_its_stream_joins_to() -> None:
    choices = [WholeChoice(k, (A, SPELLED), FinishReason.STOP) for k in (0, 1)]
    body = CompletionWriter(IDENTITY, has_logprobs=True).whole(choices, USAGE)
    whole = json.loads(body)
    Completion.model_validate_json(body)
    assert [choice["text"] for choice in whole["choices"]] == ["abé"] * 2
    assert whole["choices"][1]["logprobs"]["text_offset"] == [0, 2, 2]
    assert whole["usage"]["prompt_tokens"] == 3
    assert (whole["id"], whole["system_fingerprint"]) == ("cmpl-1", "fp_1")


def test_tokens_that_look_alike_count_once_and_as_the_likelier() -> None:
    alike = (TopLogprob("\ufffd", -0.5, (0xC3,)), TopLogprob("\ufffd", -2.0, (0xC4,)))
    piece = TextPiece("", (TokenLogprob("", -2.0, (0xC4,), alike),))
    told = choice_in(CompletionWriter(IDENTITY, has_logprobs=True).pieces(0, [piece])[0])
    assert told["logprobs"]["top_logprobs"] == [{"\ufffd": -0.5}]
