"""How one Session's tokens are drawn here: its parameters, and its answer so far by position.

The answer is told with the parameters and grows with every draw. What a draw depends on is the
answer before its position, so a position that is drawn again draws the same, and counts once.
"""

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import torch

from meshnet_common.protocol.bodies import Epoch
from meshnet_common.protocol.sampling import MOST_LOGPROBS, History, Sampling, TokenLogprobs
from meshnet_worker.engine.sampling import (
    bias,
    draw,
    forbid,
    greedy,
    logprobs_of,
    penalise_answer,
    penalise_repetition,
)
from meshnet_worker.engine_port import ArmSession


class Mask(Protocol):
    """What one Session's grammar allows; what it raises fails that Session."""

    @property
    def is_ready(self) -> bool:
        """Whether it can be applied without waiting."""

    def __call__(self, logits: torch.Tensor, answer_ids: Sequence[int]) -> None:
        """Forbid tokens after the ids of an answer so far: their logits become minus infinity.

        The logits are one Session's own, `[vocabulary]` in float64 on the CPU, changed in place.
        """


def no_mask(command: ArmSession) -> Mask:
    """Follow no grammar; raises ValueError."""
    raise ValueError(f"no grammar is followed here, such as {command.sampling.grammar[:40]!r}")


class Drawn(NamedTuple):
    """A token, and how likely it was where its Session wants to know."""

    token_id: int
    logprobs: TokenLogprobs | None = None


class Drawing:
    """One Session's parameters and answer."""

    def __init__(
        self,
        command: ArmSession,
        vocabulary_size: int,
        make_mask: Callable[[ArmSession], Mask] = no_mask,
    ) -> None:
        """Raises ValueError for what no token can be drawn with, and whatever `make_mask` does."""
        sampling, history = command.sampling, command.history
        _check_numbers(sampling)
        if history is None and sampling.uses_answer:
            raise ValueError("nobody said where the answer begins")
        history = history or History(answer_start=0)
        _check_ids((token_id for token_id, _ in sampling.logit_bias), vocabulary_size)
        _check_ids((*history.prompt_ids, *history.answer_ids), vocabulary_size)
        self.opening: Epoch = command.opening
        self._sampling = sampling
        self._mask = make_mask(command) if sampling.grammar else None
        self._start = history.answer_start
        self._answer = array("q", history.answer_ids)
        self._prompt = _tensor(array("q", history.prompt_ids))
        self._bias_ids = torch.tensor([i for i, _ in sampling.logit_bias], dtype=torch.int64)
        self._biases = torch.tensor([b for _, b in sampling.logit_bias], dtype=torch.float64)
        # One that the model lacks is never drawn anyway.
        end_ids = [i for i in sampling.end_ids if 0 <= i < vocabulary_size]
        self._end_ids = torch.tensor(end_ids, dtype=torch.int64)

    @property
    def is_ready(self) -> bool:
        """Whether it can be drawn without waiting for what its grammar allows."""
        return self._mask is None or self._mask.is_ready

    @property
    def is_plain(self) -> bool:
        """Whether it takes the largest logit, and tells no more of it."""
        sampling = self._sampling
        is_edited = bool(sampling.logit_bias) or sampling.uses_answer
        return sampling.temperature == 0.0 and sampling.logprobs is None and not is_edited

    def draw(self, logits: torch.Tensor, position: int) -> Drawn:
        """Draw from `[vocabulary]` in float64 on the CPU; raises ValueError where nothing fits."""
        sampling = self._sampling
        if sampling.uses_answer or sampling.logit_bias:
            token_id = self._draw_edited(logits.clone(), position)
        else:
            token_id = draw(logits, sampling, position)
        if sampling.logprobs is None:
            return Drawn(token_id)
        return Drawn(token_id, logprobs_of(logits, token_id, sampling.logprobs))

    def _draw_edited(self, logits: torch.Tensor, position: int) -> int:
        before = self._before(position) if self._sampling.uses_answer else array("q")
        self._edit(logits, before)
        token_id = draw(logits, self._sampling, position)
        if self._sampling.uses_answer:
            del self._answer[len(before) :]
            self._answer.append(token_id)
        return token_id

    def _edit(self, logits: torch.Tensor, before: "array[int]") -> None:
        """Bias and penalties in vLLM's order, then what may not be drawn at all."""
        sampling = self._sampling
        bias(logits, self._bias_ids, self._biases)
        answer = _tensor(before)
        if sampling.uses_prompt:
            ids = torch.cat((self._prompt, answer))
            penalise_repetition(logits, ids, sampling.repetition_penalty)
        if sampling.frequency_penalty or sampling.presence_penalty:
            penalise_answer(logits, answer, sampling.frequency_penalty, sampling.presence_penalty)
        if self._mask is not None:
            self._mask(logits, before)
        if len(before) < sampling.min_tokens:
            forbid(logits, self._end_ids)

    def _before(self, position: int) -> "array[int]":
        count = position - self._start
        if not 0 <= count <= len(self._answer):
            raise ValueError(f"the answer before position {position} is not known")
        return self._answer[:count]


class Wanted(NamedTuple):
    """A draw that a segment asks for."""

    drawing: Drawing | None
    epoch: Epoch
    position: int

    @property
    def is_plain(self) -> bool:
        return self.drawing is not None and self.drawing.is_plain


def draw_rows(wanted: Sequence[Wanted], logits: torch.Tensor) -> list[Drawn | Exception | None]:
    """Draw from each row of `[rows, vocabulary]`; what goes wrong costs its own row only.

    None for a segment from before its Session was opened again: the answer has changed since.
    """
    if not wanted:
        return []
    plain = [row for row, one in enumerate(wanted) if one.is_plain]
    if len(plain) == len(wanted):
        return [_drawn(winner) for winner in greedy(logits)]
    results: list[Drawn | Exception | None] = [None] * len(wanted)
    if plain:
        for row, winner in zip(plain, greedy(logits[plain]), strict=True):
            results[row] = _drawn(winner)
    others = [row for row, one in enumerate(wanted) if not one.is_plain]
    for row, exact in zip(others, logits[others].double().cpu(), strict=True):
        results[row] = _draw_row(wanted[row], exact)
    return results


def _draw_row(wanted: Wanted, logits: torch.Tensor) -> Drawn | Exception | None:
    drawing = wanted.drawing
    if drawing is None:
        return ValueError("nobody said how to draw")
    if wanted.epoch < drawing.opening:
        return None
    try:
        return drawing.draw(logits, wanted.position)
    except Exception as error:  # noqa: BLE001 - a mask raises anything
        return error


def _drawn(winner: int | ValueError) -> Drawn | ValueError:
    return winner if isinstance(winner, ValueError) else Drawn(winner)


def _tensor(ids: "array[int]") -> torch.Tensor:
    # A hundredth of the time that torch takes to read them one by one.
    return torch.frombuffer(ids, dtype=torch.int64).clone() if ids else torch.empty(0).long()


def _check_numbers(sampling: Sampling) -> None:
    amounts = [amount for _, amount in sampling.logit_bias]
    penalties = [sampling.frequency_penalty, sampling.presence_penalty]
    finite = [*amounts, *penalties, sampling.temperature, sampling.top_p, sampling.min_p]
    is_sound = (
        all(map(math.isfinite, finite))
        and 0.0 < sampling.repetition_penalty < math.inf
        and sampling.temperature >= 0.0
        and 0.0 <= sampling.min_p <= 1.0
        and min(sampling.top_k, sampling.min_tokens) >= 0
        and 0 <= (sampling.logprobs or 0) <= MOST_LOGPROBS
    )
    if not is_sound:
        raise ValueError("a parameter of its draws is out of range")


def _check_ids(ids: Iterable[int], vocabulary_size: int) -> None:
    if not all(0 <= token_id < vocabulary_size for token_id in ids):
        raise ValueError("a token id is not in the vocabulary")
