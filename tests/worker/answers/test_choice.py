from collections.abc import Sequence

import pytest

from meshnet_common.openai.errors import ApiError
from meshnet_common.openai.pieces import FinishReason, Piece, TextPiece
from meshnet_common.protocol.notes import Sent
from meshnet_common.protocol.resume import ChoiceRecord
from meshnet_worker.answers.choice import Choice
from tests.worker.answers.scripts import PROMPT, Script, end_id, ids_of, likely

IDS = ids_of("bytes", "the end of it")


def choice_of(script: Script) -> Choice:
    return script.answer().choices[0]


def record(*token_ids: int, sent: tuple[Sent, ...] = ()) -> ChoiceRecord:
    return ChoiceRecord(token_ids=token_ids, sent=sent)


def text_of(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))


def test_a_resumed_choice_goes_on_behind_its_record() -> None:
    choice = choice_of(Script(IDS))
    text = text_of(choice.resume(record(*IDS[:2], sent=(Sent.ROLE,))))
    assert "the end of it".startswith(text)
    assert choice.generation.chosen == choice.token_ids == IDS[:2]
    assert choice.generation.known == len(PROMPT) + 2
    assert not choice.is_over


def test_a_record_of_all_tokens_leaves_nothing_to_be_generated() -> None:
    choice = choice_of(Script(IDS))
    choice.resume(record(*IDS))
    assert choice.is_over
    assert choice.finish_reason is FinishReason.LENGTH


def test_a_record_up_to_the_models_end_is_over() -> None:
    end = end_id("bytes")
    choice = choice_of(Script([*IDS, end], most_tokens=50, end_ids=frozenset({end})))
    choice.resume(record(*IDS, end))
    assert choice.is_over
    assert choice.finish_reason is FinishReason.STOP


def test_a_record_up_to_a_stop_string_is_over() -> None:
    choice = choice_of(Script(IDS, stop=("of it",), most_tokens=50))
    choice.resume(record(*IDS))
    assert choice.is_over
    assert choice.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("sent", [Sent.REST, Sent.FINISH])
def test_what_was_ended_for_the_client_generates_nothing_more(sent: Sent) -> None:
    # The Route before may have had less room than this one.
    choice = choice_of(Script(IDS, most_tokens=50))
    choice.resume(record(*IDS[:2], sent=(Sent.ROLE, sent)))
    assert choice.is_over


CONTRADICTIONS = {
    "too many tokens": (Script(IDS, most_tokens=2), record(*IDS[:3])),
    "tokens behind the model's end": (
        Script(IDS, end_ids=frozenset({IDS[0]})),
        record(*IDS[:2]),
    ),
    "tokens behind a stop string": (Script(IDS, stop=("the",)), record(*IDS)),
    "more that is told than there is": (
        Script(IDS, logprobs=True),
        ChoiceRecord(token_ids=(IDS[0],), logprobs=(likely(1), likely(2))),
    ),
}


@pytest.mark.parametrize(("script", "claimed"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_record_that_contradicts_the_request_is_a_400(
    script: Script, claimed: ChoiceRecord
) -> None:
    with pytest.raises(ApiError) as refused:
        choice_of(script).resume(claimed)
    assert (refused.value.status, refused.value.body.param) == (400, "record")


def test_what_is_held_back_is_counted_to_the_newest_token() -> None:
    end = end_id("bytes")
    ids = [*ids_of("bytes", "the"), *ids_of("bytes", " wai"), end]
    script = Script(ids, stop=(" wait",), logprobs=True, end_ids=frozenset({end}), most_tokens=50)
    choice = choice_of(script)
    held = []
    for token_id in ids:
        choice.generation.chosen.append(token_id)
        choice.take(token_id, likely(token_id))
        held.append(choice.held_tokens)
    shown, waiting = len(ids_of("bytes", "the")), len(ids_of("bytes", " wai"))
    assert held == [*[0] * shown, *range(1, waiting + 1), waiting + 1]
    assert text_of(choice.finish()) == " wai"
    assert choice.held_tokens == 0


def test_the_models_end_is_no_token_that_is_told() -> None:
    end = end_id("bytes")
    choice = choice_of(Script([end], logprobs=True, end_ids=frozenset({end})))
    choice.generation.chosen.append(end)
    assert not choice.take(end, likely(end))
    assert not choice.finish()
    assert choice.token_ids == [end]
