import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from meshnet_worker.text.detokenizer import (
    ByteDetokenizer,
    Vocabulary,
    WindowDetokenizer,
    text_of,
)
from tests.worker.text.small_tokenizers import BEGIN, END, byte_level, sentencepiece

BYTES = Vocabulary(byte_level())
PIECES = Vocabulary(sentencepiece())
BOTH = pytest.mark.parametrize("vocabulary", [BYTES, PIECES], ids=["bytes", "pieces"])

READABLE = st.text(st.characters(codec="utf-8", exclude_characters="\ufffd"))
AWKWARD = "Größe 日本語 👩‍👩‍👧 \u0301 the  of\n😀"


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def id_of(tokenizer: Tokenizer, token: str) -> int:
    token_id = tokenizer.token_to_id(token)
    assert token_id is not None
    return token_id


def streamed(vocabulary: Vocabulary, ids: list[int]) -> list[str]:
    detokenizer = vocabulary.detokenizer()
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.finish()]


def test_each_kind_of_tokenizer_gets_its_detokenizer() -> None:
    assert isinstance(BYTES.detokenizer(), ByteDetokenizer)
    assert isinstance(PIECES.detokenizer(), WindowDetokenizer)


@BOTH
@given(text=READABLE)
@example(text=AWKWARD)
@example(text="  two blanks first")
@example(text="😀" * 20)
def test_the_joined_stream_is_the_decode_of_the_whole(vocabulary: Vocabulary, text: str) -> None:
    ids = ids_of(vocabulary.tokenizer, text)

    assert "".join(streamed(vocabulary, ids)) == vocabulary.tokenizer.decode(ids)


@BOTH
@given(text=READABLE)
@example(text=AWKWARD)
def test_no_piece_of_a_stream_holds_half_a_character(vocabulary: Vocabulary, text: str) -> None:
    pieces = streamed(vocabulary, ids_of(vocabulary.tokenizer, text))

    assert not any("\ufffd" in piece for piece in pieces)


@BOTH
@given(text=READABLE, cut=st.integers(0, 200))
@example(text="日本語", cut=4)
def test_an_unfinished_character_at_the_end_is_dropped(
    vocabulary: Vocabulary, text: str, cut: int
) -> None:
    ids = ids_of(vocabulary.tokenizer, text)[:cut]
    whole = vocabulary.tokenizer.decode(ids_of(vocabulary.tokenizer, text))

    result = text_of(vocabulary.detokenizer(), ids)
    assert whole.startswith(result)
    assert "\ufffd" not in result


@given(st.lists(st.integers(0, byte_level().get_vocab_size() + 3), max_size=40))
def test_junk_bytes_come_out_as_the_tokenizer_decodes_them(ids: list[int]) -> None:
    # The letter ends whatever character was unfinished.
    ids = [*ids, *ids_of(BYTES.tokenizer, "x")]

    assert "".join(streamed(BYTES, ids)) == BYTES.tokenizer.decode(ids)


@given(st.lists(st.integers(0, sentencepiece().get_vocab_size() + 3), max_size=60))
def test_junk_pieces_are_shown_and_never_stop_the_stream(ids: list[int]) -> None:
    assert streamed(PIECES, [*ids, *ids_of(PIECES.tokenizer, "a")])[-2].endswith("a")


@given(st.lists(st.integers(0, sentencepiece().get_vocab_size() - 1), max_size=200))
def test_the_window_stays_short_whatever_comes(ids: list[int]) -> None:
    detokenizer = WindowDetokenizer(PIECES)
    for token_id in ids:
        detokenizer.push(token_id)
        assert len(detokenizer._window) <= 16


def test_special_tokens_have_no_text_and_cost_no_blank() -> None:
    begin = id_of(PIECES.tokenizer, "<s>")
    the, of = (id_of(PIECES.tokenizer, word) for word in ("▁the", "▁of"))

    assert streamed(PIECES, [begin, the, begin, of]) == ["", "the", "", " of", ""]


def test_added_tokens_are_plain_text_even_where_it_looks_like_bytes() -> None:
    special = [id_of(BYTES.tokenizer, token) for token in (BEGIN, END)]
    added = [id_of(BYTES.tokenizer, token) for token in ("schön", "ÃÃ")]
    ids = [*special, *added, *ids_of(BYTES.tokenizer, "x")]

    assert "".join(streamed(BYTES, ids)) == BYTES.tokenizer.decode(ids)


def test_a_real_replacement_character_is_shown() -> None:
    ids = ids_of(BYTES.tokenizer, "a\ufffd")

    assert "".join(streamed(BYTES, ids)) == "a\ufffd"


def test_the_alphabet_covers_every_byte() -> None:
    tokens = [BYTES.tokenizer.id_to_token(i) for i in range(BYTES.tokenizer.get_vocab_size())]
    single = {BYTES.token_bytes(i) for i, token in enumerate(tokens) if token and len(token) == 1}

    assert single == {bytes([value]) for value in range(256)}
