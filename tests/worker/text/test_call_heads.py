import pytest

from meshnet_worker.text.call_heads import MAX_CHARACTERS, CallHead
from meshnet_worker.text.call_styles import NEWER_MISTRAL
from meshnet_worker.text.json_scanner import NotJsonError

LONGEST = "a" * MAX_CHARACTERS


def read(text: str) -> CallHead:
    head = CallHead(NEWER_MISTRAL, {"add", LONGEST})
    for character in text:
        head.feed(character)
    return head


@pytest.mark.parametrize("text", ["add{", "add[ARGS]{", " add [CALL_ID] x-1 [ARGS] {", "add[ARGS]"])
def test_a_head_has_a_name(text: str) -> None:
    assert read(text).name == "add"


def test_a_name_is_one_once_it_has_ended() -> None:
    assert read("add").name is None
    assert read(f"{LONGEST}[ARGS]").name == LONGEST


@pytest.mark.parametrize(
    "text",
    ["{", "[ARGS]", "rm{", "ad d", "add!", "add[x", "add[ARGS]x", "add[ARGS][", LONGEST + "a"],
)
def test_what_can_be_no_head_is_refused_at_once(text: str) -> None:
    read(text[:-1])
    with pytest.raises(NotJsonError):
        read(text)
