"""A model split over several Shards in one process, run as the Hops of a Route run it."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch

from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine.attention import FlatSegment
from meshnet_worker.engine.kv import SessionKv
from meshnet_worker.engine.shard import Shard, ShardSource
from tests.worker.models import CONTEXT_TOKENS, LAYERS

CPU = torch.device("cpu")
CHUNK_TOKENS = 128


def source(folder: Path) -> ShardSource:
    return ShardSource(str(folder), torch.float32, CPU)


def loaded(folder: Path, start: int = 0, end: int = LAYERS) -> Shard:
    shard = Shard(source(folder))
    for _ in shard.load(ShardRange(start, end)):
        pass
    return shard


def even_ranges(parts: int) -> list[ShardRange]:
    bounds = [LAYERS * part // parts for part in range(parts + 1)]
    return [ShardRange(start, end) for start, end in pairwise(bounds)]


class SplitModel:
    """Hops in order; any of them may run fewer Layers than its Shard holds."""

    def __init__(self, hops: Sequence[tuple[Shard, ShardRange]]) -> None:
        self._hops = hops

    @classmethod
    def over(cls, folder: Path, parts: int) -> "SplitModel":
        return cls([(loaded(folder, r.start, r.end), r) for r in even_ranges(parts)])

    def session(self) -> "SplitSession":
        return SplitSession(self)

    def run(self, runs: "Sequence[tuple[SplitSession, list[int], int]]") -> torch.Tensor:
        """One Batch of (session, ids, start): the logits of every row."""
        rows = torch.tensor([token_id for _, ids, _ in runs for token_id in ids])
        every_row = range(len(rows))
        for place, (shard, shard_range) in enumerate(self._hops):
            segments, row = [], 0
            for session, ids, start in runs:
                segments.append(FlatSegment(session.kv[place], row, len(ids), start))
                row += len(ids)
            is_last = place == len(self._hops) - 1
            rows = shard.run(shard_range, rows, segments, every_row if is_last else ())
        return rows

    @property
    def hops(self) -> int:
        return len(self._hops)


class SplitSession:
    """One Session on every Hop of a SplitModel."""

    def __init__(self, model: SplitModel) -> None:
        self.model = model
        self.kv = [SessionKv.alone(CONTEXT_TOKENS, range(LAYERS)) for _ in range(model.hops)]

    def run(self, ids: list[int], start: int) -> torch.Tensor:
        return self.model.run([(self, ids, start)])

    def prefill(self, prompt: list[int]) -> torch.Tensor:
        """Send a prompt in Prefill Chunks; the logits of every position."""
        chunks = [
            self.run(prompt[start : start + CHUNK_TOKENS], start)
            for start in range(0, len(prompt), CHUNK_TOKENS)
        ]
        return torch.cat(chunks)

    def answer(self, prompt: list[int], tokens: int) -> tuple[list[int], torch.Tensor]:
        """Answer greedily; the ids and the logits of all positions that were run."""
        logits = self.prefill(prompt)
        answer = [int(logits[-1].argmax())]
        while len(answer) < tokens:
            position = len(prompt) + len(answer) - 1
            logits = torch.cat((logits, self.run(answer[-1:], position)))
            answer.append(int(logits[-1].argmax()))
        return answer, logits
