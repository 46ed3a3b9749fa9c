import json
import random
import select
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from tokenizers import Tokenizer

from meshnet_worker.engine.grammar import (
    MOST_GRAMMARS,
    Followed,
    GrammarError,
    Grammars,
    PendingMask,
    Vocabulary,
)
from tests.worker.text import small_tokenizers
from tests.worker.text.json_schemas import SCHEMAS, WIDE, grammar

END_ID = 1
CUT = -1
"""Stands for the end of an answer that was not whole yet."""
LONG = {"formats", "many properties"}
"""Answers that are seldom whole within the tokens that they get here."""
PATIENCE_SECONDS = 30.0
IMPOSSIBLE = float("-inf")

Begin = Callable[..., PendingMask]


class Answerer:
    """Draws answers at random, and closes soon what it has opened."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self.tokenizer = tokenizer
        self.size = tokenizer.get_vocab_size()
        self._random = random.Random(seed)
        self._generator = torch.Generator().manual_seed(seed)
        texts = {token_id: text for text, token_id in tokenizer.get_vocab().items()}
        self._closing = [i for i, text in texts.items() if any(c in text for c in '"]}')]

    def logits(self) -> torch.Tensor:
        logits = torch.randn(self.size, generator=self._generator, dtype=torch.float64)
        logits[self._closing] += self._random.choice([0, 3])
        logits[END_ID] += self._random.choice([0, 0, 6])
        return logits

    def answer(self, mask: PendingMask, most: int = 200) -> list[int]:
        """Ids up to the end, which is left out; at most so many."""
        ids: list[int] = []
        while len(ids) < most:
            logits = self.logits()
            mask(logits, ids)
            chosen = int(logits.argmax())
            if chosen == END_ID:
                return ids
            ids.append(chosen)
        return [*ids, CUT]

    def text(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False)


@pytest.fixture(scope="module", params=["byte_level", "sentencepiece"])
def answerer(request: pytest.FixtureRequest) -> Answerer:
    return Answerer(getattr(small_tokenizers, request.param)(), seed=6)


@pytest.fixture(scope="module")
def begin(answerer: Answerer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begin]:
    folder = small_tokenizers.model_folder(tmp_path_factory.mktemp("model"), answerer.tokenizer)
    grammars = Grammars()

    def started(text: str, answer_ids: tuple[int, ...] = ()) -> PendingMask:
        vocabulary = Vocabulary(str(folder), answerer.size)
        return grammars.begin(vocabulary, Followed(text, (END_ID,)), answer_ids)

    yield started
    grammars.close()


def allowed(mask: PendingMask, answerer: Answerer, ids: list[int]) -> set[int]:
    logits = torch.zeros(answerer.size, dtype=torch.float64)
    mask(logits, ids)
    return set((logits == 0).nonzero().flatten().tolist())


def is_valid(text: str, schema: dict[str, Any]) -> bool:
    try:
        jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_answer_that_ends_parses_and_validates(
    name: str, begin: Begin, answerer: Answerer
) -> None:
    schema = SCHEMAS[name]
    ended = 0
    for _ in range(6):
        ids = answerer.answer(begin(grammar(schema)))
        if ids[-1:] != [CUT]:
            ended += 1
            assert is_valid(answerer.text(ids), schema), answerer.text(ids)
    assert ended or name in LONG


@pytest.mark.parametrize("name", ["enumeration", "nested arrays", "types", "lengths"])
def test_an_answer_may_end_exactly_where_it_is_whole(
    name: str, begin: Begin, answerer: Answerer
) -> None:
    schema = SCHEMAS[name]
    for _ in range(6):
        ids = answerer.answer(begin(grammar(schema)), most=60)
        mask = begin(grammar(schema))
        for length in range(len([i for i in ids if i != CUT]) + 1):
            may_end = END_ID in allowed(mask, answerer, ids[:length])
            assert may_end == is_valid(answerer.text(ids[:length]), schema)


def test_positions_may_be_drawn_again_in_any_order(begin: Begin, answerer: Answerer) -> None:
    text = grammar(SCHEMAS["scalars"])
    ids = answerer.answer(begin(text))
    other = answerer.answer(begin(text))
    places = [*range(len(ids)), 0, len(ids) - 1, 3, 3, 2, len(ids) // 2]
    mask = begin(text)
    for place in places:
        fresh = begin(text)
        assert allowed(mask, answerer, ids[:place]) == allowed(fresh, answerer, ids[:place])
        assert allowed(mask, answerer, other[:2]) == allowed(begin(text), answerer, other[:2])


def test_a_mask_that_begins_within_an_answer_goes_on_as_another_would(
    begin: Begin, answerer: Answerer
) -> None:
    text = grammar(SCHEMAS["alternatives"])
    ids = answerer.answer(begin(text))
    for place in range(len(ids) + 1):
        taken_over = begin(text, tuple(ids[:place]))
        assert allowed(taken_over, answerer, ids[:place]) == allowed(
            begin(text), answerer, ids[:place]
        )


def test_after_its_end_an_answer_only_ends_again(begin: Begin, answerer: Answerer) -> None:
    mask = begin(grammar({"const": 1}))
    one = answerer.tokenizer.encode("1", add_special_tokens=False).ids[-1:]
    assert allowed(mask, answerer, [*one, END_ID]) == {END_ID}
    assert allowed(mask, answerer, [*one, END_ID, END_ID]) == {END_ID}
    assert allowed(mask, answerer, one) == {END_ID}
    assert END_ID not in allowed(mask, answerer, [])


def test_an_answer_that_never_followed_fails_and_no_other_does(
    begin: Begin, answerer: Answerer
) -> None:
    text = grammar(SCHEMAS["scalars"])
    strange = answerer.tokenizer.encode("the", add_special_tokens=False).ids
    with pytest.raises(GrammarError, match="It stopped at"):
        allowed(begin(text), answerer, strange)
    with pytest.raises(GrammarError, match="It stopped at"):
        allowed(begin(text, tuple(strange)), answerer, strange)
    assert allowed(begin(text), answerer, [])


def test_blanks_never_go_on(begin: Begin, answerer: Answerer) -> None:
    vocabulary = answerer.tokenizer.get_vocab()
    blank = "▁" if "▁" in vocabulary else "Ġ"
    mask = begin(grammar({"const": {"a": [1, 2]}}))
    ids: list[int] = []
    for letter in '{"a": [1, 2]}':
        may_be_blank = vocabulary[blank] in allowed(mask, answerer, ids)
        assert may_be_blank == (letter == " ")
        spelled = blank if letter == " " else letter
        byte_id = vocabulary.get(f"<0x{ord(letter):02X}>", -1)
        ids.append(vocabulary.get(spelled, byte_id))


def test_a_grammar_that_does_not_compile_fails_its_own_session(
    begin: Begin, answerer: Answerer
) -> None:
    broken, sound = begin("start: /(/"), begin(grammar({"type": "null"}))
    with pytest.raises(GrammarError, match="does not compile"):
        broken(torch.zeros(answerer.size, dtype=torch.float64), [])
    assert broken.is_ready
    assert allowed(sound, answerer, [])


def test_a_grammar_that_grows_beyond_its_limits_fails_its_own_session(
    begin: Begin, answerer: Answerer
) -> None:
    pattern = "(.{0,99}[a-z].{0,99}[^a-z]){50}"
    dear = begin(grammar({"type": "string", "pattern": pattern}))
    with pytest.raises(GrammarError, match="too many"):
        answerer.answer(dear)
    assert allowed(begin(grammar({"type": "null"})), answerer, [])


@pytest.mark.parametrize("name", WIDE)
def test_as_many_entries_as_a_schema_may_have_are_followed(
    name: str, begin: Begin, answerer: Answerer
) -> None:
    assert answerer.answer(begin(grammar(WIDE[name])), most=20)


def test_only_the_logits_of_forbidden_tokens_change(begin: Begin, answerer: Answerer) -> None:
    rows = torch.randn(3, answerer.size, dtype=torch.float64)
    before = rows.clone()
    begin(grammar({"type": "boolean"}))(rows[1], [])
    assert torch.equal(rows[0], before[0])
    assert torch.equal(rows[2], before[2])
    kept = rows[1] != IMPOSSIBLE
    assert 0 < int(kept.sum()) < answerer.size
    assert torch.equal(rows[1][kept], before[1][kept])


def test_logits_beyond_the_tokenizer_are_forbidden(tmp_path: Path) -> None:
    tokenizer = small_tokenizers.byte_level()
    small_tokenizers.model_folder(tmp_path, tokenizer)
    size = tokenizer.get_vocab_size()
    for logits_size in (size + 70, size - 4):
        grammars = Grammars()
        followed = Followed(grammar(SCHEMAS["any object"]), (END_ID, 10**6))
        mask = grammars.begin(Vocabulary(str(tmp_path), logits_size), followed, ())
        logits = torch.zeros(logits_size, dtype=torch.float64)
        mask(logits, [])
        assert bool((logits[:size] == 0).any())
        assert bool((logits[size:] == IMPOSSIBLE).all())
        grammars.close()


def test_a_model_without_a_tokenizer_that_can_be_read_fails_with_the_reason(
    tmp_path: Path,
) -> None:
    grammars = Grammars()
    followed = Followed(grammar({"type": "null"}), (END_ID,))
    for content in (None, "{}", "no JSON"):
        if content is not None:
            (tmp_path / "tokenizer.json").write_text(content)
        mask = grammars.begin(Vocabulary(str(tmp_path), 8), followed, ())
        with pytest.raises(GrammarError, match="tokenizer"):
            mask(torch.zeros(8, dtype=torch.float64), [])
    grammars.close()


def test_a_mask_says_when_it_is_ready(tmp_path: Path) -> None:
    small_tokenizers.model_folder(tmp_path, small_tokenizers.byte_level())
    grammars = Grammars()
    vocabulary = Vocabulary(str(tmp_path), small_tokenizers.byte_level().get_vocab_size())
    mask = grammars.begin(vocabulary, Followed(grammar({"type": "null"}), (END_ID,)), ())
    readable, _, _ = select.select([grammars.lifeline], [], [], PATIENCE_SECONDS)
    assert readable
    assert mask.is_ready
    grammars.quieten()
    assert select.select([grammars.lifeline], [], [], 0) == ([], [], [])
    grammars.close()


def test_a_mask_that_nobody_waits_for_is_not_made(tmp_path: Path) -> None:
    small_tokenizers.model_folder(tmp_path, small_tokenizers.byte_level())
    grammars = Grammars()
    vocabulary = Vocabulary(str(tmp_path), small_tokenizers.byte_level().get_vocab_size())
    begun = threading.Event()
    grammars._thread.submit(begun.wait)
    for place in range(3):
        grammars.begin(vocabulary, Followed(grammar({"const": place}), (END_ID,)), ())
    begun.set()
    grammars.close()
    assert not grammars._compiled


def test_only_so_many_grammars_are_kept(tmp_path: Path) -> None:
    small_tokenizers.model_folder(tmp_path, small_tokenizers.byte_level())
    grammars = Grammars()
    vocabulary = Vocabulary(str(tmp_path), small_tokenizers.byte_level().get_vocab_size())
    texts = [grammar({"const": place}) for place in range(MOST_GRAMMARS + 3)]
    for text in [texts[0], *texts, texts[0]]:
        logits = torch.zeros(vocabulary.size, dtype=torch.float64)
        grammars.begin(vocabulary, Followed(text, (END_ID,)), ())(logits, [])
    assert len(grammars._compiled) == MOST_GRAMMARS
    grammars.close()
