import pytest

from meshnet_worker.text.long_texts import BEGINNING_CHARACTERS, CLEARLY, ReadText, read_text

ROOM = 10
LONGEST = ROOM * BEGINNING_CHARACTERS


class Splitting:
    """A tokenizer whose tokens have so many characters each."""

    def __init__(self, characters: int) -> None:
        self._characters = characters
        self.read: list[int] = []

    def __call__(self, text: str) -> list[int]:
        self.read.append(len(text))
        return [7] * (len(text) // self._characters)


def test_a_text_that_may_fit_is_read_once() -> None:
    splitting = Splitting(4)
    assert read_text("x" * LONGEST, splitting, ROOM) == ReadText((7,) * (LONGEST // 4))
    assert splitting.read == [LONGEST]


def test_of_a_text_that_is_clearly_too_long_only_the_beginning_is_read() -> None:
    splitting = Splitting(4)
    read = read_text("x" * 4_000_000, splitting, ROOM)
    assert (len(read.ids), read.is_whole) == (LONGEST // 4, False)
    assert splitting.read == [LONGEST]


@pytest.mark.parametrize("characters", [BEGINNING_CHARACTERS // CLEARLY + 1, 100, 1000])
def test_a_text_whose_tokens_are_long_is_read_whole(characters: int) -> None:
    text = "x" * (2 * LONGEST)
    read = read_text(text, Splitting(characters), ROOM)
    assert read == ReadText((7,) * (len(text) // characters))
