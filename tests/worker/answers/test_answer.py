import msgspec
import pytest

from meshnet_common.openai.errors import ApiError
from meshnet_common.openai.writer import Usage
from meshnet_common.protocol.notes import Sent
from meshnet_common.protocol.resume import ChoiceRecord, ResumeRecord
from tests.worker.answers.scripts import Script, ids_of, likely

IDS = ids_of("bytes", "the end of it")
WORDS = 1000
BOTH = Script(IDS, others=(IDS[:2],))


def record(*choices: ChoiceRecord) -> ResumeRecord:
    return ResumeRecord(id="chatcmpl-s1", created=1, choices=choices)


def one(*token_ids: int, index: int = 0, sent: tuple[Sent, ...] = ()) -> ChoiceRecord:
    return ChoiceRecord(index=index, token_ids=token_ids, sent=sent)


def test_all_choices_are_counted_and_the_prompt_once() -> None:
    answer = BOTH.answer()
    assert not answer.has_tokens
    for token in BOTH.drawn(answer):
        answer.choices[token[0]].take(token[1])
    assert answer.is_over
    assert answer.usage == Usage.of(3, len(IDS) + 2)


def test_an_answer_is_over_when_all_its_choices_are() -> None:
    answer = BOTH.answer()
    answer.resume(record(one(*IDS[:1]), one(*IDS[:2], index=1)), WORDS)
    assert [choice.is_over for choice in answer.choices] == [False, True]
    assert not answer.is_over
    assert answer.has_tokens


def test_a_choice_of_which_nothing_came_is_not_on_record() -> None:
    answer = BOTH.answer()
    assert set(answer.resume(record(one(*IDS[:1])), WORDS)) == {0}
    assert [choice.token_ids for choice in answer.choices] == [IDS[:1], []]


CONTRADICTIONS = {
    "a token beyond the vocabulary": (Script(IDS), record(one(WORDS))),
    "a negative token": (Script(IDS), record(one(-1))),
    "too many tokens": (Script(IDS, most_tokens=2), record(one(*IDS[:3]))),
    "no choice": (Script(IDS), record()),
    "the same choice twice": (BOTH, record(one(), one())),
    "more choices than were asked for": (Script(IDS), record(one(), one(index=1))),
    "a negative choice": (BOTH, record(one(), one(index=-1))),
    "only another choice": (BOTH, record(one(index=1))),
    "usage that was not asked for": (Script(IDS), record(one(sent=(Sent.USAGE,)))),
    "usage of another choice": (
        Script(IDS, include_usage=True, others=(IDS,)),
        record(one(), one(index=1, sent=(Sent.USAGE,))),
    ),
    "events of an answer that is no stream": (
        Script(IDS, stream=False),
        record(one(sent=(Sent.ROLE,))),
    ),
    "tokens that it should tell of and does not": (
        Script(IDS, stream=False, logprobs=True),
        record(ChoiceRecord(token_ids=tuple(IDS[:2]), logprobs=(likely(1),))),
    ),
    "held tokens that it does not tell of": (
        Script(IDS, stop=("the never",), logprobs=True, most_tokens=50),
        record(one(*IDS[:1])),
    ),
}


@pytest.mark.parametrize(("script", "claimed"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_record_that_contradicts_the_request_is_a_400(
    script: Script, claimed: ResumeRecord
) -> None:
    with pytest.raises(ApiError) as refused:
        script.answer().resume(claimed, WORDS)
    assert (refused.value.status, refused.value.body.param) == (400, "record")


def test_a_token_that_is_no_number_is_no_record() -> None:
    for token_id in ("1.5", '"1"', "true", "null"):
        body = f'{{"id": "a", "created": 1, "choices": [{{"token_ids": [{token_id}]}}]}}'
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(body, type=ResumeRecord)
