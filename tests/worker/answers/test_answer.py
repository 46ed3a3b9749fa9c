import msgspec
import pytest

from meshnet_common.openai.errors import ApiError
from meshnet_common.openai.pieces import FinishReason
from meshnet_common.protocol.notes import Sent
from meshnet_common.protocol.resume import ChoiceRecord, ResumeRecord
from tests.worker.answers.scripts import PROMPT, Script, end_id, ids_of

IDS = ids_of("bytes", "the end of it")
WORDS = 1000


def record(*token_ids: int, sent: tuple[Sent, ...] = (), choices: int = 1) -> ResumeRecord:
    choice = ChoiceRecord(token_ids=token_ids, sent=sent)
    return ResumeRecord(id="chatcmpl-s1", created=1, choices=(choice,) * choices)


def test_a_resumed_answer_goes_on_behind_its_record() -> None:
    answer = Script(IDS).answer()
    text = answer.resume(record(*IDS[:2], sent=(Sent.ROLE,)), WORDS)
    assert "the end of it".startswith(text)
    assert answer.generation.chosen == answer.token_ids == IDS[:2]
    assert answer.generation.known == len(PROMPT) + 2
    assert not answer.is_over


def test_a_record_of_all_tokens_leaves_nothing_to_be_generated() -> None:
    answer = Script(IDS).answer()
    answer.resume(record(*IDS), WORDS)
    assert answer.is_over
    assert answer.finish_reason is FinishReason.LENGTH
    assert answer.usage.completion_tokens == len(IDS)


def test_a_record_up_to_the_models_end_is_over() -> None:
    end = end_id("bytes")
    answer = Script([*IDS, end], most_tokens=50, end_ids=frozenset({end})).answer()
    answer.resume(record(*IDS, end), WORDS)
    assert answer.is_over
    assert answer.finish_reason is FinishReason.STOP


def test_a_record_up_to_a_stop_string_is_over() -> None:
    answer = Script(IDS, stop=("of it",), most_tokens=50).answer()
    answer.resume(record(*IDS), WORDS)
    assert answer.is_over
    assert answer.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("sent", [Sent.REST, Sent.FINISH])
def test_what_was_ended_for_the_client_generates_nothing_more(sent: Sent) -> None:
    # The Route before may have had less room than this one.
    answer = Script(IDS, most_tokens=50).answer()
    answer.resume(record(*IDS[:2], sent=(Sent.ROLE, sent)), WORDS)
    assert answer.is_over


CONTRADICTIONS = {
    "too many tokens": (Script(IDS, most_tokens=2), record(*IDS[:3])),
    "a token beyond the vocabulary": (Script(IDS), record(WORDS)),
    "a negative token": (Script(IDS), record(-1)),
    "tokens behind the model's end": (
        Script(IDS, end_ids=frozenset({IDS[0]})),
        record(*IDS[:2]),
    ),
    "tokens behind a stop string": (Script(IDS, stop=("the",)), record(*IDS)),
    "no choice": (Script(IDS), record(choices=0)),
    "several choices": (Script(IDS), record(choices=2)),
    "another choice": (
        Script(IDS),
        ResumeRecord(id="a", created=1, choices=(ChoiceRecord(index=1),)),
    ),
    "usage that was not asked for": (Script(IDS), record(sent=(Sent.USAGE,))),
    "events of an answer that is no stream": (
        Script(IDS, stream=False),
        record(sent=(Sent.ROLE,)),
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
