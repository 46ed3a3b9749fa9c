"""Texts as clients give them: one or several strings, or token ids made of such; pure."""

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta

from meshnet_common.openai.errors import invalid_request

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TextInput = str | list[str | TokenId | list[TokenId]]
"""The field as clients send it."""

Texts = tuple[str, ...]
TokenLists = tuple[tuple[int, ...], ...]


def read_text_input(given: TextInput, field: str) -> Texts | TokenLists:
    """Return one text or one list of ids for each input; raises ApiError 400."""
    if isinstance(given, str):
        return _checked_texts((given,), field)
    if not given:
        raise invalid_request(f"`{field}` must not be empty.", field)
    entries: Sequence[Any] = given
    if all(isinstance(one, int) for one in entries):
        return (tuple(entries),)
    if all(isinstance(one, str) for one in entries):
        return _checked_texts(tuple(entries), field)
    if all(isinstance(one, list) for one in entries):
        return _checked_ids(entries, field)
    message = f"`{field}` must be all strings, all token ids, or all lists of token ids."
    raise invalid_request(message, field)


def _checked_texts(texts: Texts, field: str) -> Texts:
    for place, text in enumerate(texts):
        if not text:
            where = field if len(texts) == 1 else f"{field}[{place}]"
            raise invalid_request(f"`{where}` must not be an empty string.", where)
    return texts


def _checked_ids(lists: Sequence[list[int]], field: str) -> TokenLists:
    for place, ids in enumerate(lists):
        if not ids:
            where = f"{field}[{place}]"
            raise invalid_request(f"`{where}` must not be empty.", where)
    return tuple(map(tuple, lists))
