"""Whatever stands in a field of a request: it is read or refused by a name, and nothing else."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.openai.completions import CompletionBody, parse_completion_request
from meshnet_common.openai.embeddings import EmbeddingBody, parse_embedding_request
from meshnet_common.openai.errors import ApiError
from meshnet_common.openai.meaning import read_with_meaning
from meshnet_common.openai.messages import MessageBody
from meshnet_common.openai.requests import ChatBody, parse_chat_request
from meshnet_common.openai.response_request import ResponseBody, parse_response_request

TURN = {"role": "user", "content": "a"}
CHAT = {"model": "m", "messages": [TURN]}
TOOL = {"type": "function", "name": "f", "function": {"name": "f"}}
ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 10**20, "", "a", "auto", "\x00", "😀", [], [None], [[]], {}),
    *({"a": None}, {"type": None}, {"type": []}, {"type": "function"}, {"type": {}}, ["a"] * 6),
    *({"type": "allowed_tools", "mode": [], "tools": [[]]}, [{"type": "x"}], TOOL, [TOOL]),
    *({"type": "json_schema", "name": [], "schema": {"type": [[]], "enum": [{}, []]}},),
)
Parse = Callable[[bytes], msgspec.Struct]
APIS: dict[str, tuple[Parse, type[msgspec.Struct], dict[str, Any]]] = {
    "chat": (parse_chat_request, ChatBody, CHAT),
    "completions": (parse_completion_request, CompletionBody, {"model": "m", "prompt": "a"}),
    "responses": (parse_response_request, ResponseBody, {"model": "m", "input": "a"}),
    "embeddings": (parse_embedding_request, EmbeddingBody, {"model": "m", "input": "a"}),
}
values = st.recursive(
    st.sampled_from(ODD),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(("type", "name", "mode", "tools", "function")), inner)
    ),
    max_leaves=6,
)


def read(parse: Parse, body: dict[str, Any]) -> None:
    """Read a body, of which nothing but an ApiError may come."""
    try:
        read_with_meaning(parse, json.dumps(body).encode())
    except ApiError as error:
        assert error.status == 400, error  # noqa: PT017 - most bodies are read


def fields_of(body: type[msgspec.Struct]) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(body)]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("tools", [None, [TOOL]], ids=["plain", "with tools"])
def test_an_odd_value_in_any_field(api: str, tools: Any) -> None:
    parse, body, plain = APIS[api]
    for name in fields_of(body):
        for odd in ODD:
            read(parse, {**plain, **({"tools": tools} if tools else {}), name: odd})


@pytest.mark.parametrize("role", ["user", "assistant", "tool", "developer"])
def test_an_odd_value_in_any_field_of_a_turn(role: str) -> None:
    for name in fields_of(MessageBody):
        for odd in ODD:
            turns = [{"role": role, "content": "a", name: odd}, TURN]
            read(parse_chat_request, {**CHAT, "messages": turns})
            read(parse_response_request, {"model": "m", "input": turns})


@given(st.sampled_from(sorted(APIS)), st.data())
def test_odd_values_in_several_fields(api: str, data: st.DataObject) -> None:
    parse, body, plain = APIS[api]
    odd = data.draw(st.dictionaries(st.sampled_from(fields_of(body)), values, max_size=3))
    read(parse, {**plain, **odd})
