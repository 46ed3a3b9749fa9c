from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from meshnet_common.openai.apis import CHAT, COMPLETIONS, RESPONSES
from meshnet_common.openai.embeddings import parse_embedding_request
from meshnet_common.openai.errors import ApiError
from meshnet_common.openai.meaning import read_with_meaning

MESSAGES = [{"role": "user", "content": "Hi"}]
PARAMETERS = {"type": "object", "x": 1 << 70}
TOOL = {"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}
HUGE = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"maximum": 1 << 50}}}
ASKED: dict[str, tuple[Callable[[bytes], msgspec.Struct], dict[str, Any]]] = {
    "chat": (CHAT.parse, {"model": "m", "messages": MESSAGES, "tools": [TOOL]}),
    "json": (CHAT.parse, {"model": "m", "messages": MESSAGES, "response_format": HUGE}),
    "completions": (COMPLETIONS.parse, {"model": "m", "prompt": ["a", "b"], "logit_bias": {}}),
    "responses": (RESPONSES.parse, {"model": "m", "input": "Hi"}),
    "embeddings": (parse_embedding_request, {"model": "m", "input": [[1, 2]]}),
}
EACH = pytest.mark.parametrize(("parse", "fields"), ASKED.values(), ids=ASKED)


def meaning(parse: Callable[[bytes], msgspec.Struct], fields: dict[str, Any]) -> bytes:
    return read_with_meaning(parse, msgspec.json.encode(fields))[1]


@EACH
def test_other_spellings_mean_the_same(
    parse: Callable[[bytes], msgspec.Struct], fields: dict[str, Any]
) -> None:
    known = meaning(parse, fields)
    for same in (
        dict(reversed(fields.items())),
        {**fields, "user": "me", "unknown": [1]},
        {**fields, "temperature": None},
    ):
        assert meaning(parse, same) == known
    pretty = msgspec.json.format(msgspec.json.encode(fields))
    assert read_with_meaning(parse, pretty)[1] == known
    manner = {"encoding_format": "base64"} if parse is parse_embedding_request else {"stream": True}
    assert meaning(parse, {**fields, **manner}) == known


@EACH
def test_what_would_be_answered_otherwise_means_something_else(
    parse: Callable[[bytes], msgspec.Struct], fields: dict[str, Any]
) -> None:
    prompt = next(name for name in ("messages", "prompt", "input") if name in fields)
    other = [{"role": "user", "content": "Ho"}] if prompt == "messages" else "Ho"
    meanings = {
        meaning(parse, fields),
        meaning(parse, {**fields, "model": "n"}),
        meaning(parse, {**fields, prompt: other}),
    }
    assert len(meanings) == 3


def test_no_two_apis_mean_the_same() -> None:
    assert len({meaning(parse, fields) for parse, fields in ASKED.values()}) == len(ASKED)


def test_what_is_no_request_has_no_meaning() -> None:
    with pytest.raises(ApiError):
        read_with_meaning(CHAT.parse, b"{}")
