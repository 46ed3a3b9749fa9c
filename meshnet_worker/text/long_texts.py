"""Reads texts as token ids, and of one that is clearly too long its beginning only; pure.

Megabytes take seconds to read and hundreds of megabytes of memory, and their beginning tells the
same. Which tokens a text becomes may depend on all of it, so only a beginning that has far too many
decides; a text of long tokens, such as blanks, is read to its end.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

BEGINNING_CHARACTERS = 16
"""Of the beginning, for each token that there is room for: ordinary text has four a token."""
CLEARLY = 2
"""Times the tokens there is room for: no cut elsewhere makes half as many of a text."""

GivenText = str | tuple[int, ...]
"""A text, or the token ids that somebody else has made of one."""
ReadIds = Callable[[str], Sequence[int]]


@dataclass(frozen=True, slots=True)
class ReadText:
    """The ids of a text, or of the beginning of one that is clearly too long."""

    ids: tuple[int, ...]
    is_whole: bool = True


def read_text(text: GivenText, ids_of: ReadIds, room: int) -> ReadText:
    """Read a text for which there is room for so many tokens."""
    if not isinstance(text, str):
        return ReadText(text)
    beginning = text[: room * BEGINNING_CHARACTERS]
    ids = tuple(ids_of(beginning))
    if len(beginning) == len(text):
        return ReadText(ids)
    if len(ids) >= CLEARLY * room:
        return ReadText(ids, is_whole=False)
    return ReadText(tuple(ids_of(text)))
