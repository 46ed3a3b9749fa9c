import json

from openai.types import Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from meshnet_common.openai.responses import (
    AnswerIdentity,
    ChatChunks,
    FinishReason,
    ListedModel,
    Usage,
    chat_completion,
    model_list,
    one_model,
)

IDENTITY = AnswerIdentity("chatcmpl-1", 1_700_000_000, "smol", "fp_1")
USAGE = Usage.of(prompt_tokens=3, completion_tokens=4)


def whole_stream(include_usage: bool) -> list[bytes]:
    chunks = ChatChunks(IDENTITY, include_usage)
    return [
        chunks.role(),
        chunks.content("Hé"),
        chunks.finish(FinishReason.STOP),
        chunks.usage(USAGE),
    ]


def test_every_chunk_repeats_the_identity_of_the_answer() -> None:
    for chunk in whole_stream(include_usage=True):
        fields = json.loads(chunk)
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
    for chunk in whole_stream(include_usage=True):
        ChatCompletionChunk.model_validate_json(chunk)


def test_a_whole_answer_has_the_nullable_keys() -> None:
    body = chat_completion(IDENTITY, "Hé", FinishReason.LENGTH, USAGE)
    choice = json.loads(body)["choices"][0]

    assert choice["logprobs"] is None
    assert choice["message"] == {"role": "assistant", "content": "Hé", "refusal": None}
    assert choice["finish_reason"] == "length"
    usage = ChatCompletion.model_validate_json(body).usage
    assert usage is not None
    assert usage.total_tokens == 7


def test_the_model_list_says_no_more_than_is_known() -> None:
    body = model_list(
        [ListedModel(id="a", created=1), ListedModel(id="b", created=2, max_model_len=4)]
    )

    assert json.loads(body) == {
        "object": "list",
        "data": [
            {"id": "a", "object": "model", "created": 1, "owned_by": "meshnet"},
            {
                "id": "b",
                "object": "model",
                "created": 2,
                "owned_by": "meshnet",
                "max_model_len": 4,
            },
        ],
    }


def test_one_model_carries_our_extension() -> None:
    body = one_model(ListedModel(id="a", created=1, meshnet={"coverage": [[0, 30, 1]]}))

    assert Model.model_validate_json(body).id == "a"
    assert json.loads(body)["meshnet"] == {"coverage": [[0, 30, 1]]}
