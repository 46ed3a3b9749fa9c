from typing import Any

import msgspec
import pytest

from meshnet_common.openai.completions import parse_completion_request
from meshnet_common.openai.errors import ApiError
from meshnet_common.openai.foreign_options import ForeignFields
from meshnet_common.openai.requests import parse_chat_request

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
COMPLETION = {"model": "m", "prompt": "Hi"}
NAMES = ForeignFields.__struct_fields__


def parsed(fields: dict[str, Any]) -> tuple[object, object]:
    return (
        parse_chat_request(msgspec.json.encode({**CHAT, **fields})),
        parse_completion_request(msgspec.json.encode({**COMPLETION, **fields})),
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [True, 1, "a", ["a"], {"type": "object"}])
@pytest.mark.parametrize(
    ("parse", "body"), [(parse_chat_request, CHAT), (parse_completion_request, COMPLETION)]
)
def test_an_option_that_would_change_the_answer_is_never_ignored(
    name: str, value: object, parse: Any, body: dict[str, Any]
) -> None:
    with pytest.raises(ApiError) as refused:
        parse(msgspec.json.encode({**body, name: value}))
    told = refused.value.body
    assert (refused.value.status, told.param, told.code) == (400, name, "unsupported_value")


@pytest.mark.parametrize("value", [None, False, [], {}, ""])
def test_one_that_asks_for_nothing_changes_nothing(value: object) -> None:
    assert parsed(dict.fromkeys(NAMES, value)) == parsed({})


@pytest.mark.parametrize(("name", "value"), [("best_of", 2), ("echo", True)])
def test_what_belongs_to_completions_is_no_part_of_a_chat(name: str, value: object) -> None:
    with pytest.raises(ApiError) as refused:
        parse_chat_request(msgspec.json.encode({**CHAT, name: value}))
    assert (refused.value.status, refused.value.body.param) == (400, name)
