"""Bodies of the public API's answers without text, about models and prompts."""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class ListedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model of `GET /v1/models`; `max_model_len` and `meshnet` extend OpenAI's object."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "meshnet"
    max_model_len: int | UnsetType = UNSET
    """Longest prompt plus answer, in tokens, that can be admitted now."""
    meshnet: dict[str, Any] | UnsetType = UNSET
    """Facts for people and tools that know meshnet, such as the coverage."""


class ModelList(msgspec.Struct, frozen=True):
    """The whole body of `GET /v1/models`."""

    data: tuple[ListedModel, ...]
    object: str = "list"


class InputTokens(msgspec.Struct, frozen=True):
    """The whole body of `POST …/input_tokens`."""

    input_tokens: int
    object: str = "response.input_tokens"


def model_list(models: Iterable[ListedModel]) -> bytes:
    """Build the answer of `GET /v1/models`."""
    return msgspec.json.encode(ModelList(tuple(models)))


def one_model(model: ListedModel) -> bytes:
    """Build the answer of `GET /v1/models/{id}`."""
    return msgspec.json.encode(model)


def counted_tokens(tokens: int) -> bytes:
    """Build the answer of `POST …/input_tokens`."""
    return msgspec.json.encode(InputTokens(tokens))
