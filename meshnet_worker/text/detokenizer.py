"""Text from token ids that come one by one, never showing half a character.

Two kinds of tokenizer need two ways. Byte-level ones (GPT-2, Llama 3, Qwen, SmolLM) give every
token its bytes, so an incremental UTF-8 decoder is exact and cheap. For all others the tokenizer's
own decoder runs over a short window of recent tokens, since it may treat the first token of a text
in its own way (sentencepiece drops a leading blank). The library's DecodeStream does neither well:
after junk bytes it shows nothing more, and its window grows with every token.

Streamed and whole answers both come out of here, so that they are equal, and in both the bytes of a
character that was cut off at the end are dropped.
"""

import codecs
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from tokenizers import Tokenizer

_REPLACEMENT = "\ufffd"

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")

# A character has at most four bytes, each a token at worst; more undecided tokens are junk.
_MAX_UNDECIDED_TOKENS = 8


class Spelled(NamedTuple):
    """One token: the characters that it would complete in its place, and its own bytes.

    A special token is spelled by its name, though it gives no text.
    """

    text: str
    own_bytes: bytes


class Detokenizer(Protocol):
    """One answer's text so far; special tokens give none."""

    def push(self, token_id: int) -> str:
        """Take the next token; return the characters that it completes, perhaps none."""

    def finish(self) -> str:
        """Return what is left at the end, without the bytes of an unfinished character."""

    def spelled(self, token_id: int) -> Spelled:
        """Say what a token would be as the next one; it changes nothing."""

    def is_special(self, token_id: int) -> bool:
        """Whether a token is none of the text."""


class Vocabulary:
    """What detokenizers of one tokenizer share: its special ids and, if it has them, bytes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.special_ids = frozenset(
            token_id
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
            if token.special
        )
        self.is_byte_level = type(tokenizer.decoder).__name__ == "ByteLevel"
        self._bytes: dict[int, bytes] = {}

    def detokenizer(self) -> Detokenizer:
        return ByteDetokenizer(self) if self.is_byte_level else WindowDetokenizer(self)

    def has_text(self, token_id: int) -> bool:
        """Tell whether this id is a token of the text, not a special or unknown one."""
        return token_id not in self.special_ids and self.tokenizer.id_to_token(token_id) is not None

    def special(self, token_id: int) -> Spelled | None:
        """Spell a special token; None for one of the text, and nothing for an unknown one."""
        if self.has_text(token_id):
            return None
        name = self.tokenizer.id_to_token(token_id) or ""
        return Spelled(name, name.encode())

    def fallback_byte(self, token_id: int) -> bytes | None:
        """Return the byte of a token such as `<0x0A>`, where these stand for bytes."""
        token = self.tokenizer.id_to_token(token_id)
        match = _BYTE_TOKEN.fullmatch(token) if token else None
        if match is None or self.tokenizer.decode([token_id]) == token:
            return None
        return bytes.fromhex(match[1])

    def token_bytes(self, token_id: int) -> bytes:
        """Return a byte-level token's bytes; none for special and unknown ones."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._spell(token_id)
        return known

    def _spell(self, token_id: int) -> bytes:
        token = self.tokenizer.id_to_token(token_id)
        if token is None or token_id in self.special_ids:
            return b""
        spelled = [_BYTE_OF_CHARACTER.get(character) for character in token]
        values = [value for value in spelled if value is not None]
        # An added token is spelled in plain text, not in the alphabet of bytes.
        return bytes(values) if len(values) == len(spelled) else token.encode()


class ByteDetokenizer:
    """For tokenizers whose tokens are bytes; equals the tokenizer's decode, even of junk."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(self._vocabulary.token_bytes(token_id))

    def finish(self) -> str:
        self._decoder.reset()
        return ""

    def is_special(self, token_id: int) -> bool:
        return not self._vocabulary.has_text(token_id)

    def spelled(self, token_id: int) -> Spelled:
        special = self._vocabulary.special(token_id)
        if special is not None:
            return special
        state, own_bytes = self._decoder.getstate(), self._vocabulary.token_bytes(token_id)
        text = self._decoder.decode(own_bytes)
        self._decoder.setstate(state)
        return Spelled(text, own_bytes)


class WindowDetokenizer:
    """For every other tokenizer: decodes the last shown tokens with and without the new ones."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        # window: [ shown tokens | undecided tokens ], shown_text is the text of the first part.
        self._window: list[int] = []
        self._shown_tokens = 0
        self._shown_text = ""

    def push(self, token_id: int) -> str:
        if not self._vocabulary.has_text(token_id):
            return ""
        new = self._completed_by(token_id)
        self._window.append(token_id)
        if new:
            self._move_on()
        return new

    def finish(self) -> str:
        rest = self._decode(self._window)[len(self._shown_text) :].rstrip(_REPLACEMENT)
        self._window, self._shown_tokens, self._shown_text = [], 0, ""
        return rest

    def is_special(self, token_id: int) -> bool:
        return not self._vocabulary.has_text(token_id)

    def spelled(self, token_id: int) -> Spelled:
        special = self._vocabulary.special(token_id)
        if special is not None:
            return special
        text = self._completed_by(token_id)
        own_bytes = self._vocabulary.fallback_byte(token_id)
        if own_bytes is None:
            # Before it there may be junk of tokens that were undecided.
            is_first = len(self._window) == self._shown_tokens
            own_bytes = (text if is_first else text.lstrip(_REPLACEMENT)).encode()
        return Spelled(text, own_bytes)

    def _completed_by(self, token_id: int) -> str:
        window = [*self._window, token_id]
        text = self._decode(window)
        undecided = len(window) - self._shown_tokens
        if text.endswith(_REPLACEMENT) and undecided < _MAX_UNDECIDED_TOKENS:
            return ""
        return text[len(self._shown_text) :]

    def _move_on(self) -> None:
        # What was new becomes the context that keeps the next token from being a first one.
        self._window = self._window[self._shown_tokens :]
        self._shown_tokens = len(self._window)
        self._shown_text = self._decode(self._window)

    def _decode(self, token_ids: list[int]) -> str:
        return self._vocabulary.tokenizer.decode(token_ids)


def text_of(detokenizer: Detokenizer, token_ids: Iterable[int]) -> str:
    """Return the whole text of an answer, as a stream of it would have been."""
    pieces = [detokenizer.push(token_id) for token_id in token_ids]
    return "".join(pieces) + detokenizer.finish()


def _byte_alphabet() -> Mapping[str, int]:
    # GPT-2's alphabet: printable Latin-1 bytes are themselves, the rest follow from U+0100 on.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [value for value in range(256) if value not in printable]
    alphabet = {chr(value): value for value in printable}
    return alphabet | {chr(256 + place): value for place, value in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_alphabet()
