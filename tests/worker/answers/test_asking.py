from typing import Any

import llguidance
import pytest

from meshnet_common.openai.errors import ApiError
from meshnet_common.openai.formats import TEXT, JsonObject, grammar_text
from meshnet_common.openai.pieces import ToolCallPiece
from meshnet_common.openai.requests import ChatRequest, parse_chat_request
from meshnet_common.openai.tools import call_id
from meshnet_common.protocol.resume import ResumeRecord
from meshnet_common.protocol.sampling import Sampling, TokenLogprobs
from meshnet_worker.answers import asking as asking_module
from meshnet_worker.answers.asking import Asking, Pace
from meshnet_worker.shards import LocalShard
from meshnet_worker.text.call_styles import HERMES
from meshnet_worker.text.calling_text import CallingText
from meshnet_worker.text.tokenizer import TextCodec
from meshnet_worker.text.tool_grammar import answer_grammar
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


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
        },
    },
    {"type": "function", "function": {"name": "wait"}},
]
LOOK = {"type": "function", "function": {"name": "look"}}
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "x"}}\n</tool_call>'


def said(one: Asking, text: str) -> list[ToolCallPiece]:
    """The calls in a text that the model writes."""
    choice_text = one.begin(NOW, PACE).choices[0].text
    assert isinstance(choice_text, CallingText)
    pieces = [*choice_text._let_go(choice_text._parser.push(text))]
    return [piece for piece in pieces if isinstance(piece, ToolCallPiece)]


def test_tools_are_in_the_prompt_and_calls_in_the_answer(codec: TextCodec) -> None:
    offered = asking(codec, tools=TOOLS)

    prompts = [one.begin(NOW, PACE).choices[0].generation for one in (offered, asking(codec))]
    assert len(prompts[0].prompt_ids) > len(prompts[1].prompt_ids)
    assert [piece.name for piece in said(offered, CALL)] == ["look", None]
    assert [piece.id for piece in said(offered, CALL)] == [call_id("chatcmpl-s1", 0, 0), None]


@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS}, {"logprobs": True}])
def test_a_stop_string_counts_once_the_answer_has_its_least_tokens(
    fields: dict[str, Any], codec: TextCodec
) -> None:
    one = asking(codec, stop="w5", min_tokens=2, max_tokens=9, **fields)
    choice = one.begin(NOW, PACE).choices[0]

    stopped = []
    for _ in range(3):
        choice.take(5, TokenLogprobs(-1.0))
        stopped.append(choice.text.stopped)
    assert stopped == [False, False, True]


def test_calls_of_an_answer_that_goes_on_keep_their_ids(codec: TextCodec) -> None:
    record = ResumeRecord(id="chatcmpl-old", created=17, choices=())

    assert said(asking(codec, record, tools=TOOLS), CALL)[0].id == call_id("chatcmpl-old", 0, 0)


def test_forced_calls_are_held_to_a_grammar_that_the_tail_worker_ends(codec: TextCodec) -> None:
    forced = asking(codec, tools=TOOLS, tool_choice=LOOK)

    sampling = forced.sampling(0)
    assert sampling.grammar == answer_grammar(HERMES, forced.request.tool_use, TEXT)
    assert sampling.end_ids == (END_ID,)
    assert asking(codec, tools=TOOLS).sampling(0).grammar == ""
    assert said(forced, CALL.replace("look", "wait")) == []


def test_without_tools_an_answer_is_held_to_its_format(codec: TextCodec) -> None:
    one = asking(codec, response_format={"type": "json_object"})

    assert one.sampling(0).grammar == grammar_text(JsonObject())
    assert one.sampling(0).end_ids == (END_ID,)


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("tools", {"tools": TOOLS, "tool_choice": "required"}),
        ("response_format", {"response_format": {"type": "json_object"}}),
    ],
)
def test_a_grammar_that_cannot_be_followed_is_refused_by_its_field(
    param: str, fields: dict[str, Any], codec: TextCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    tight = llguidance.LLParserLimits(max_grammar_size=1)
    monkeypatch.setattr("meshnet_worker.text.grammars.LIMITS", tight)

    with pytest.raises(ApiError) as caught:
        asking(codec, **fields).begin(NOW, PACE)
    assert (caught.value.status, caught.value.body.param) == (400, param)


@pytest.mark.parametrize(("n", "each"), [(1, 8), (2, 4)])
def test_a_whole_answer_is_no_longer_than_its_record_can_hold(
    n: int, each: int, codec: TextCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking_module, "most_tokens_told_at_once", {20: 8}.__getitem__)
    told: dict[str, Any] = {"n": n, "logprobs": True, "top_logprobs": 20}

    def most(**fields: Any) -> int:
        return asking(codec, **fields).begin(NOW, PACE).choices[-1].generation.max_new_tokens

    assert most(**told) == most(**told, max_tokens=each) == each
    assert most(**told, stream=True) == most(n=n) > each
    with pytest.raises(ApiError, match=f"{each} tokens at most") as refused:
        most(**told, max_tokens=each + 1)
    assert (refused.value.status, refused.value.body.param) == (400, "logprobs")
