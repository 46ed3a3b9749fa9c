import json
from typing import Any

from openai.types.chat import ChatCompletion, ChatCompletionChunk

from meshnet_common.openai.chat_writer import ChatWriter
from meshnet_common.openai.pieces import (
    FinishReason,
    Piece,
    TextPiece,
    TokenLogprob,
    ToolCallPiece,
    TopLogprob,
    WholeChoice,
)
from meshnet_common.openai.writer import AnswerIdentity, Usage

IDENTITY = AnswerIdentity("chatcmpl-1", 1_700_000_000, "smol", "fp_1")
USAGE = Usage.of(prompt_tokens=3, completion_tokens=4)
HALF = TokenLogprob("", -0.5, (0xC3,))
OTHER_HALF = TokenLogprob("é", -0.25, (0xA9,), (TopLogprob("ü", -1.5, (0xBC,)),))
SPELLED = TextPiece("é", (HALF, OTHER_HALF))
CALL: tuple[Piece, ...] = (
    ToolCallPiece(0, "call_1", "add"),
    ToolCallPiece(0, arguments='{"a"'),
    ToolCallPiece(1, "call_2", "sub", "{}"),
    ToolCallPiece(0, arguments=": 1}"),
)


def whole_stream(include_usage: bool) -> list[bytes]:
    writer = ChatWriter(IDENTITY, include_usage)
    return [
        *writer.begin(0),
        *writer.pieces(0, [TextPiece("H"), TextPiece("é")]),
        *writer.finish(0, FinishReason.STOP),
        *writer.usage(USAGE),
    ]


def whole(*pieces: Piece, **fields: Any) -> Any:
    choice = WholeChoice(0, pieces, FinishReason.LENGTH)
    body = ChatWriter(IDENTITY, **fields).whole([choice], USAGE)
    ChatCompletion.model_validate_json(body)
    return json.loads(body)["choices"][0]


def chunks(*pieces: Piece, **fields: Any) -> list[Any]:
    payloads = ChatWriter(IDENTITY, **fields).pieces(2, pieces)
    for payload in payloads:
        ChatCompletionChunk.model_validate_json(payload)
    return [json.loads(payload)["choices"][0] for payload in payloads]


def chunk(*pieces: Piece, **fields: Any) -> Any:
    (only,) = chunks(*pieces, **fields)
    return only


def test_every_chunk_repeats_the_identity_of_the_answer() -> None:
    for payload in whole_stream(include_usage=True):
        fields = json.loads(payload)
        assert fields["id"] == IDENTITY.id
        assert fields["created"] == IDENTITY.created
        assert fields["model"] == IDENTITY.model
        assert fields["system_fingerprint"] == IDENTITY.system_fingerprint
        assert fields["object"] == "chat.completion.chunk"


def test_the_first_chunk_gives_the_role_and_the_finish_chunk_has_an_empty_delta() -> None:
    role, content, finish, _ = (json.loads(chunk) for chunk in whole_stream(include_usage=True))

    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert content["choices"][0]["delta"] == {"content": "Hé"}
    assert finish["choices"][0]["delta"] == {}
    assert [c["choices"][0]["finish_reason"] for c in (role, content, finish)] == [
        None,
        None,
        "stop",
    ]


def test_usage_is_null_until_the_last_chunk_and_that_has_no_choice() -> None:
    *earlier, last = (json.loads(chunk) for chunk in whole_stream(include_usage=True))

    assert [chunk["usage"] for chunk in earlier] == [None, None, None]
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


def test_usage_is_absent_if_nobody_asked() -> None:
    *earlier, _ = (json.loads(chunk) for chunk in whole_stream(include_usage=False))

    assert all("usage" not in chunk for chunk in earlier)


def test_the_official_client_reads_every_chunk() -> None:
    for payload in whole_stream(include_usage=True):
        ChatCompletionChunk.model_validate_json(payload)


def test_a_whole_answer_has_the_nullable_keys() -> None:
    choice = whole(TextPiece("H"), TextPiece("é"))

    assert choice["logprobs"] is None
    assert choice["message"] == {"role": "assistant", "content": "Hé", "refusal": None}
    assert choice["finish_reason"] == "length"


def test_every_choice_has_its_index() -> None:
    choices = [WholeChoice(k, (TextPiece(str(k)),), FinishReason.STOP) for k in range(3)]
    body = json.loads(ChatWriter(IDENTITY).whole(choices, USAGE))

    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert chunk(TextPiece("x"))["index"] == 2


def test_tokens_are_told_where_their_text_is_if_they_were_asked_for() -> None:
    entry = {"token": "é", "logprob": -0.25, "bytes": [0xA9]}
    top = {"token": "ü", "logprob": -1.5, "bytes": [0xBC]}
    half = {"token": "", "logprob": -0.5, "bytes": [0xC3], "top_logprobs": []}
    told = {"content": [half, {**entry, "top_logprobs": [top]}], "refusal": None}

    assert chunk(SPELLED, has_logprobs=True)["logprobs"] == told
    assert whole(SPELLED, has_logprobs=True)["logprobs"] == told
    assert chunk(SPELLED)["logprobs"] is None
    assert whole(SPELLED)["logprobs"] is None


def test_an_answer_without_tokens_still_tells_them_if_they_were_asked_for() -> None:
    assert whole(has_logprobs=True)["logprobs"] == {"content": [], "refusal": None}


def test_chunks_without_text_tell_no_tokens() -> None:
    writer = ChatWriter(IDENTITY, has_logprobs=True)
    for payload in (*writer.begin(0), *writer.finish(0, FinishReason.STOP)):
        assert json.loads(payload)["choices"][0]["logprobs"] is None


def test_every_fragment_of_a_call_has_a_chunk_of_its_own_and_only_the_first_a_name() -> None:
    fragments = [told["delta"]["tool_calls"] for told in chunks(*CALL)]

    assert fragments[0] == [
        {
            "index": 0,
            "id": "call_1",
            "type": "function",
            "function": {"name": "add", "arguments": ""},
        }
    ]
    assert fragments[1] == [{"index": 0, "function": {"arguments": '{"a"'}}]
    assert [call["index"] for (call,) in fragments] == [0, 0, 1, 0]


def test_a_whole_answer_joins_the_fragments_of_each_call() -> None:
    message = whole(*CALL)["message"]

    assert message["content"] is None
    names = [(call["id"], call["type"], call["function"]["name"]) for call in message["tool_calls"]]
    assert names == [("call_1", "function", "add"), ("call_2", "function", "sub")]
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == ['{"a": 1}', "{}"]


def test_text_and_calls_may_come_together() -> None:
    together = (TextPiece("So: "), *CALL)

    first, *calls = chunks(*together)
    assert first["delta"] == {"content": "So: "}
    assert len(calls) == len(CALL)
    assert whole(*together)["message"]["content"] == "So: "
