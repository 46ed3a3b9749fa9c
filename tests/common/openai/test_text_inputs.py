from typing import Any

import pytest

from meshnet_common.openai.errors import ApiError
from meshnet_common.openai.text_inputs import read_text_input


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([5, 6], ((5, 6),)),
        ([[5, 6], [7]], ((5, 6), (7,))),
    ],
)
def test_all_four_forms_are_read(given: Any, read: tuple[Any, ...]) -> None:
    assert read_text_input(given, "prompt") == read


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ("", "prompt"),
        ([], "prompt"),
        ([""], "prompt"),
        (["a", ""], "prompt[1]"),
        ([[]], "prompt[0]"),
        ([[1], []], "prompt[1]"),
        (["a", 1], "prompt"),
        ([1, [1]], "prompt"),
    ],
)
def test_what_is_empty_or_mixed_is_refused_by_its_place(given: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_text_input(given, "prompt")
    assert (caught.value.status, caught.value.body.param) == (400, param)
