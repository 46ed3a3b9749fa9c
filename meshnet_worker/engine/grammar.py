"""Token masks: after an answer so far, which tokens its grammar allows.

A grammar is compiled in a thread beside the Batches, which takes milliseconds as a rule and up to a
second for the first one of a model; the segment that wants a token waits for that, and nothing else
does. A mask then takes some tens of microseconds, within the Batch.
"""

import math
import os
import weakref
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer

from meshnet_common.errors import MeshnetError
from meshnet_worker.engine_port import ENGINE_FAILED, GRAMMAR_FAILED
from meshnet_worker.text.grammars import LIMITS, one_line

MOST_TOKENIZERS = 4
MOST_GRAMMARS = 32
"""Compiled ones that are kept, of which a new Session begins with a copy."""

Bits = np.ndarray[tuple[int], np.dtype[np.bool_]]
Key = TypeVar("Key")
Made = TypeVar("Made")


class GrammarError(MeshnetError):
    """An answer cannot follow its grammar."""


def fault_code(reason: str | Exception) -> str:
    """Whether it is the engine that failed a Session, or what the Session was asked for."""
    return GRAMMAR_FAILED if isinstance(reason, GrammarError) else ENGINE_FAILED


class Vocabulary(NamedTuple):
    """Whose tokens are masked: a model's folder, and its number of logits."""

    folder: str
    size: int


class Followed(NamedTuple):
    """A grammar as one Session follows it; any of `end_ids` ends its answer."""

    text: str
    end_ids: tuple[int, ...]


class GrammarMask:
    """Where one Session's answer is in its grammar; follows it by position, also back."""

    def __init__(self, matcher: LLMatcher, vocabulary_size: int, end_ids: Sequence[int]) -> None:
        self._matcher = matcher
        self._size = vocabulary_size
        self._end_ids = [i for i in end_ids if 0 <= i < vocabulary_size]
        self._taken = array("q")

    def follow(self, answer_ids: Sequence[int]) -> None:
        """Go to the end of an answer so far; raises GrammarError where it cannot be."""
        answer = array("q", answer_ids)
        common = self._common(answer)
        if common < len(self._taken):
            self._matcher.rollback(len(self._taken) - common)
            del self._taken[common:]
        fresh = self._without_end(answer[common:])
        if fresh and not self._matcher.consume_tokens(list(fresh)):
            raise self._error()
        self._taken.extend(fresh)

    def __call__(self, logits: torch.Tensor, answer_ids: Sequence[int]) -> None:
        """Forbid what cannot come next, in place, in logits `[vocabulary]` on the CPU."""
        self.follow(answer_ids)
        allowed = self._allowed(is_ended=len(self._taken) < len(answer_ids))
        if not allowed.any():
            raise GrammarError("None of the model's tokens goes on with its grammar.")
        # A quarter of the time that torch takes for it.
        np.copyto(logits.numpy(), -math.inf, where=~allowed)

    def _allowed(self, *, is_ended: bool) -> Bits:
        if is_ended:
            allowed = np.zeros(self._size, dtype=np.bool_)
            allowed[self._end_ids] = True
            return allowed
        mask = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            raise self._error()
        # Where a tokenizer has fewer tokens than there are logits, the rest is not allowed.
        bits = np.unpackbits(mask, count=self._size, bitorder="little")
        allowed = bits.view(np.bool_)
        # Exactly where the grammar is content, whatever else these tokens may be as text.
        allowed[self._end_ids] = self._matcher.is_accepting()
        return allowed

    def _common(self, answer: "array[int]") -> int:
        """How many first tokens are already taken."""
        if answer[: len(self._taken)] == self._taken:
            return len(self._taken)
        pairs = zip(answer, self._taken, strict=False)
        differing = (place for place, (ours, theirs) in enumerate(pairs) if ours != theirs)
        return next(differing, len(answer))

    def _without_end(self, fresh: "array[int]") -> "array[int]":
        # What comes after an end is more of the same, if anything.
        ends = [fresh.index(end_id) for end_id in self._end_ids if end_id in fresh]
        return fresh[: min(ends)] if ends else fresh

    def _error(self) -> GrammarError:
        return GrammarError(f"It stopped at: {one_line(self._matcher.get_error())}.")


class PendingMask:
    """A mask that is being made; whoever calls it before it is ready waits."""

    made: "Future[GrammarMask]"

    @property
    def is_ready(self) -> bool:
        """Whether it can be called without waiting, or is known to fail."""
        return self.made.done()

    def __call__(self, logits: torch.Tensor, answer_ids: Sequence[int]) -> None:
        """Apply the mask; raises GrammarError, also for a grammar that does not compile."""
        self.made.result()(logits, answer_ids)


class Grammars:
    """What has been compiled in this process, and the thread that compiles."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "grammars")
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)
        self._tokenizers: OrderedDict[tuple[Vocabulary, tuple[int, ...]], LLTokenizer] = (
            OrderedDict()
        )
        self._compiled: OrderedDict[tuple[Vocabulary, Followed], LLMatcher] = OrderedDict()

    @property
    def lifeline(self) -> int:
        """A descriptor that becomes readable when a mask has become ready."""
        return self._read_end

    def begin(
        self, vocabulary: Vocabulary, followed: Followed, answer_ids: Sequence[int]
    ) -> PendingMask:
        """Begin to make the mask of a Session whose answer has come so far."""
        pending = PendingMask()
        wanted = weakref.ref(pending)
        answer = array("q", answer_ids)
        made = self._thread.submit(self._make, wanted, vocabulary, followed, answer)
        made.add_done_callback(self._ring)
        pending.made = made
        return pending

    def quieten(self) -> None:
        """Forget that masks have become ready: the lifeline has been looked at."""
        with suppress(BlockingIOError):
            while os.read(self._read_end, 4096):
                pass

    def close(self) -> None:
        """End the thread, once it has made what somebody waits for."""
        self._thread.shutdown()
        os.close(self._read_end)
        os.close(self._write_end)

    def _make(
        self,
        wanted: "weakref.ref[PendingMask]",
        vocabulary: Vocabulary,
        followed: Followed,
        answer: "array[int]",
    ) -> GrammarMask:
        if wanted() is None:
            # Its Session was closed meanwhile: others wait for the thread.
            raise GrammarError("Nobody wants it any more.")
        try:
            key = vocabulary, followed
            compiled = _kept(self._compiled, key, lambda: self._compile(*key), MOST_GRAMMARS)
            mask = GrammarMask(compiled.deep_copy(), vocabulary.size, followed.end_ids)
            mask.follow(answer)
        except GrammarError:
            raise
        except BaseException as error:
            # A panic of the library is no Exception; it must not end the process that it reaches.
            raise GrammarError(f"It does not compile: {error}") from error
        return mask

    def _compile(self, vocabulary: Vocabulary, followed: Followed) -> LLMatcher:
        tokenizer = _kept(
            self._tokenizers,
            (vocabulary, followed.end_ids),
            lambda: _read_tokenizer(vocabulary, followed.end_ids),
            MOST_TOKENIZERS,
        )
        compiled = LLMatcher(tokenizer, followed.text, log_level=0, limits=LIMITS)
        if compiled.is_error():
            raise GrammarError(f"It does not compile: {one_line(compiled.get_error())}.")
        return compiled

    def _ring(self, _made: "Future[GrammarMask]") -> None:
        # When it is full, whoever waits is woken anyway.
        with suppress(BlockingIOError):
            os.write(self._write_end, b"!")


def _kept(kept: "OrderedDict[Key, Made]", key: Key, make: Callable[[], Made], most: int) -> Made:
    """Take what is kept under a key, or make it and let the one go that was used last long ago."""
    made = kept.get(key)
    if made is None:
        made = kept[key] = make()
    kept.move_to_end(key)
    if len(kept) > most:
        kept.popitem(last=False)
    return made


def _read_tokenizer(vocabulary: Vocabulary, end_ids: Sequence[int]) -> LLTokenizer:
    file = str(Path(vocabulary.folder) / "tokenizer.json")
    fit = [end_id for end_id in end_ids if 0 <= end_id < vocabulary.size]
    try:
        # Where a tokenizer has more tokens than the model has logits, the rest is never drawn.
        return LLTokenizer(file, eos_token=fit or None)
    except ValueError as error:
        reason = one_line(str(error))[-200:]
        raise GrammarError(f"This model's tokenizer makes no token masks: {reason}.") from error
