from typing import Any

import pytest

from meshnet_common.openai.errors import ApiError
from meshnet_common.openai.requests import ChatRequest, parse_chat_request
from meshnet_common.protocol.resume import ResumeRecord
from meshnet_common.protocol.sampling import Sampling
from meshnet_worker.answers.asking import Asking, Pace
from meshnet_worker.shards import LocalShard
from meshnet_worker.text.tokenizer import TextCodec
from tests.common.builders import NOW, preset, ticket, variant
from tests.common.openai.bodies import chat_body
from tests.worker.head_routes import signed
from tests.worker.models import END_ID, WORDS

PACE = Pace(chunk_tokens=128, block_positions=16)


def asking(codec: TextCodec, record: ResumeRecord | None = None, **fields: Any) -> Asking:
    shard = LocalShard(1, preset(), variant(), "folder")
    return Asking(chat(**fields), record, signed(ticket()), shard, codec)


def chat(**fields: Any) -> ChatRequest:
    messages = [{"role": "user", "content": "w5 w6 w7"}]
    return parse_chat_request(chat_body(**{"messages": messages, **fields}))


def test_everything_that_was_asked_for_reaches_the_tail_worker(codec: TextCodec) -> None:
    one = asking(
        codec,
        temperature=0.5,
        top_p=0.25,
        top_k=40,
        min_p=0.125,
        seed=9,
        repetition_penalty=1.5,
        frequency_penalty=-2,
        presence_penalty=2,
        logit_bias={"7": -100},
        min_tokens=3,
        logprobs=True,
        top_logprobs=20,
    )
    assert one.sampling(0) == Sampling(
        temperature=0.5,
        top_p=0.25,
        top_k=40,
        min_p=0.125,
        seed=9,
        repetition_penalty=1.5,
        frequency_penalty=-2.0,
        presence_penalty=2.0,
        logit_bias=((7, -100.0),),
        end_ids=(END_ID,),
        min_tokens=3,
        logprobs=20,
    )


def test_what_was_not_asked_for_changes_nothing(codec: TextCodec) -> None:
    assert asking(codec).sampling(0) == Sampling(temperature=1.0, top_p=1.0, seed=ticket().seed)


@pytest.mark.parametrize("top_k", [WORDS + 1, 2**63 - 1])
def test_no_more_tokens_are_left_than_there_are(top_k: int, codec: TextCodec) -> None:
    assert asking(codec, top_k=top_k).sampling(0).top_k == WORDS


@pytest.mark.parametrize(
    ("seed", "seeds"),
    [
        (0, [0, 1, 2, 3]),
        (-2, [-2, -1, 0, 1]),
        (2**63 - 2, [2**63 - 2, 2**63 - 1, -(2**63), 1 - 2**63]),
        (None, [7, 8, 9, 10]),
    ],
)
def test_every_choice_has_a_seed_of_its_own(
    seed: int | None, seeds: list[int], codec: TextCodec
) -> None:
    one = asking(codec, n=4, seed=seed)
    assert [one.sampling(k).seed for k in range(4)] == seeds


def test_every_choice_is_asked_for_until_it_is_over(codec: TextCodec) -> None:
    one = asking(codec, n=3, max_tokens=2)
    answer = one.begin(NOW, PACE)
    choices = answer.choices
    choices[1].generation.chosen += [1, 2]
    for token_id in (1, 2):
        choices[1].take(token_id)
    missing = list(one.missing(answer))
    assert [ask.generation.session_id for ask in missing] == ["s1", "s1.2"]
    assert [ask.route.ticket.choice for ask in missing] == [0, 2]
    assert [ask.sampling.seed for ask in missing] == [7, 9]
    assert {ask.generation.prompt_ids for ask in missing} == {(5, 6, 7)}
    assert one.session_ids == ("s1", "s1.1", "s1.2")


def test_an_answer_that_goes_on_keeps_its_name_and_its_fingerprint(codec: TextCodec) -> None:
    record = ResumeRecord(id="chatcmpl-old", created=17, choices=())
    fresh, resumed = asking(codec).identity(NOW), asking(codec, record).identity(NOW)
    assert (fresh.id, fresh.created) == ("chatcmpl-s1", int(NOW))
    assert (resumed.id, resumed.created) == ("chatcmpl-old", 17)
    assert resumed.system_fingerprint == fresh.system_fingerprint


@pytest.mark.parametrize("token_id", [WORDS, 10**9])
def test_ids_that_are_no_tokens_are_refused(token_id: int, codec: TextCodec) -> None:
    with pytest.raises(ApiError) as caught:
        asking(codec, logit_bias={str(token_id): 1}).begin(NOW, PACE)
    assert (caught.value.status, caught.value.body.param) == (400, "logit_bias")
