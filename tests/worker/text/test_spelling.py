import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.openai.pieces import TokenLogprob
from meshnet_common.protocol.sampling import LEAST_LOGPROB, TokenLogprobs
from meshnet_worker.text.detokenizer import Vocabulary
from meshnet_worker.text.spelling import spell, without_end
from tests.worker.text.small_tokenizers import END, byte_level, sentencepiece

BYTES, PIECES = Vocabulary(byte_level()), Vocabulary(sentencepiece())
KINDS = pytest.mark.parametrize("vocabulary", [BYTES, PIECES], ids=["bytes", "pieces"])


def id_of(vocabulary: Vocabulary, token: str) -> int:
    token_id = vocabulary.tokenizer.token_to_id(token)
    assert token_id is not None
    return token_id


@KINDS
def test_halves_of_a_character_are_told_with_their_own_bytes(vocabulary: Vocabulary) -> None:
    detokenizer = vocabulary.detokenizer()
    ids = vocabulary.tokenizer.encode("😀", add_special_tokens=False).ids
    told = []
    for token_id in ids:
        told.append(spell(detokenizer, token_id, None))
        detokenizer.push(token_id)
    assert len(ids) > 1
    assert [one.token for one in told[:-1]] == [""] * (len(ids) - 1)
    assert told[-1].token.lstrip() == "😀"
    assert bytes(value for one in told for value in one.bytes).decode().lstrip() == "😀"


@KINDS
def test_others_are_told_as_they_would_have_gone_on(vocabulary: Vocabulary) -> None:
    detokenizer = vocabulary.detokenizer()
    ids = range(vocabulary.tokenizer.get_vocab_size())
    by_bytes = {detokenizer.spelled(one).own_bytes: one for one in ids}
    for value in b"\xf0\x9f\x98":
        detokenizer.push(by_bytes[bytes([value])])
    last, other = by_bytes[b"\x80"], by_bytes[b"\x81"]
    told = spell(detokenizer, last, TokenLogprobs(-0.5, ((last, -0.5), (other, -1.0))))
    shown = [(one.token.lstrip(), one.logprob) for one in told.top_logprobs]
    assert shown == [("😀", -0.5), ("😁", -1.0)]
    assert [one.bytes for one in told.top_logprobs] == [(0x80,), (0x81,)]
    assert detokenizer.push(last) == told.token


def test_a_special_token_has_its_name_among_the_others_and_none_in_the_text() -> None:
    end = id_of(BYTES, END)
    told = spell(BYTES.detokenizer(), end, TokenLogprobs(-0.5, ((end, -0.5),)))
    assert (told.token, told.bytes) == ("", ())
    (other,) = told.top_logprobs
    assert (other.token, bytes(other.bytes).decode()) == (END, END)


@KINDS
def test_an_id_that_is_no_token_is_told_without_text(vocabulary: Vocabulary) -> None:
    told = spell(vocabulary.detokenizer(), 10**6, TokenLogprobs(-1.0, ((10**6, -1.0),)))
    assert (told.token, told.bytes, told.top_logprobs[0].token) == ("", (), "")


@pytest.mark.parametrize("impossible", [-math.inf, math.nan, -1e9])
def test_what_is_impossible_is_told_as_a_number(impossible: float) -> None:
    told = spell(BYTES.detokenizer(), 5, TokenLogprobs(impossible, ((5, impossible),)))
    assert (told.logprob, told.top_logprobs[0].logprob) == (LEAST_LOGPROB, LEAST_LOGPROB)
    assert b"null" not in msgspec.json.encode(told)


def test_what_the_tail_worker_did_not_tell_is_told_as_impossible() -> None:
    assert spell(BYTES.detokenizer(), 5, None).logprob == LEAST_LOGPROB


@given(st.text(min_size=1), st.text(), st.integers(0, 3))
def test_of_a_token_that_is_cut_the_bytes_are_cut_alike(
    kept: str, cut_off: str, unfinished: int
) -> None:
    own_bytes = (kept + cut_off).encode() + "😀".encode()[:unfinished]
    token = TokenLogprob(kept + cut_off, -1.0, tuple(own_bytes))
    assert bytes(without_end(token, cut_off).bytes) == kept.encode()


@KINDS
@given(st.lists(st.integers(0, 329), max_size=30), st.integers(0, 329))
def test_whatever_comes_spelling_changes_nothing(
    vocabulary: Vocabulary, ids: list[int], other: int
) -> None:
    plain, spelled = vocabulary.detokenizer(), vocabulary.detokenizer()
    for token_id in ids:
        told = spell(spelled, token_id, TokenLogprobs(-1.0, ((other, -2.0),)))
        text = spelled.push(token_id)
        assert text == plain.push(token_id)
        assert told.token == text
        msgspec.json.encode(told)
    assert spelled.finish() == plain.finish()
