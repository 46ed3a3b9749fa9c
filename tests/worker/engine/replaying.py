"""Sessions whose Decode Steps are replayed: a pass that is run again stands for a replay."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine.attention import FlatSegment
from meshnet_worker.engine.cuda_capture import Capture, Run
from meshnet_worker.engine.graphs import Capturing, DecodeGraphs
from meshnet_worker.engine.kv import SessionKv
from meshnet_worker.engine.pool import BlockPool
from meshnet_worker.engine.shard import Shard
from meshnet_worker.engine_port import Noted
from tests.worker.conftest import ModelFolders
from tests.worker.engine.splitting import source
from tests.worker.models import HIDDEN_SIZE, LAYERS, WORDS, prompt_of

ALL = ShardRange(0, LAYERS)
MIDDLE = ShardRange(1, 3)
BLOCK_POSITIONS = 16


def again(run: Run) -> Run:
    # As in a rehearsal.
    run()
    return run


class Decoding:
    """Sessions on a Shard whose Decode Steps are replayed as soon as they may be."""

    def __init__(self, shard: Shard, shard_range: ShardRange = ALL) -> None:
        self.shard, self.shard_range = shard, shard_range
        self.pool = BlockPool(BLOCK_POSITIONS, 48, scratch_blocks=1)
        self.kvs: list[SessionKv] = []
        self.held: list[int] = []
        self.notes: list[Noted] = []
        self.captures = 0
        self.graphs = DecodeGraphs(
            Capturing(shard._fixed_pass, shard.dtype, self._begin), self.notes.append
        )
        shard._graphs = self.graphs

    def _begin(self) -> Capture:
        self.captures += 1
        return again

    @torch.inference_mode()
    def open(self, tokens: int) -> torch.Tensor:
        """Another Session with a prompt of so many tokens; the last one's logits."""
        kv = SessionKv(len(self.kvs), self.pool)
        kv.reserve(tokens, self.shard_range.layers)
        self.kvs.append(kv)
        self.held.append(tokens)
        rows = torch.tensor(prompt_of(tokens))
        if self.shard_range.start:
            rows = torch.randn((tokens, HIDDEN_SIZE), generator=torch.Generator().manual_seed(1))
        sampled = [tokens - 1] if self.shard_range.end == LAYERS else []
        # A prompt of one token must not count as a Decode Step.
        segments = [FlatSegment(kv, 0, tokens, 0)]
        graphs, self.shard._graphs = self.shard._graphs, None
        output = self.shard.run(self.shard_range, rows, segments, sampled)
        self.shard._graphs = graphs
        return output

    @torch.inference_mode()
    def step(self, rows: torch.Tensor, sessions: Sequence[int]) -> torch.Tensor:
        segments = []
        for row, session in enumerate(sessions):
            self.kvs[session].reserve(self.held[session] + 1, self.shard_range.layers)
            segments.append(FlatSegment(self.kvs[session], row, 1, self.held[session]))
            self.held[session] += 1
        sampled = range(len(segments)) if self.shard_range.end == LAYERS else ()
        return self.shard.run(self.shard_range, rows, segments, sampled)


def uncompiled(model_folders: ModelFolders, name: str) -> Shard:
    shard = Shard(replace(source(model_folders(name)), compiles=False))
    list(shard.load(ALL))
    return shard


def steps_until_replayed(decoding: Decoding, most: int = 12) -> int:
    for step in range(most):
        decoding.step(torch.tensor([step % WORDS]), [0])
        if decoding.shard.ran_compiled:
            return step
    return most
