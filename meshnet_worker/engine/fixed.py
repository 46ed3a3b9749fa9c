"""Where the rows of a padded Batch lie, in tensors that never move, and attention over them.

A captured pass repeats the same kernels on the same addresses and shapes. The plain attention
cannot be captured: without the paged kernel it makes a call for each Session, and the length of
what a Session holds is the shape of a view; with it, tables are new tensors of each Batch, made on
the host. Here lengths are contents of tensors. What the paged kernel does not take is gathered up
to the fixed depth and masked.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain

import torch
from torch.nn.functional import scaled_dot_product_attention

from meshnet_worker.engine import varlen
from meshnet_worker.engine.look import Look, written_out
from meshnet_worker.engine.padding import Padded, Size
from meshnet_worker.engine.pool import LayerPool

MOST_GATHERED = 1 << 15
"""Positions that one pass may gather in each Layer: memory that only grows with this."""


class TooDeepError(Exception):
    """A pass would gather more than it should."""


class FixedRows:
    """Takes the place of a Batch's segments in a pass that may be captured.

    `put` writes a Batch into its tensors, before the pass or between replays.
    """

    def __init__(self, size: Size, device: torch.device) -> None:
        width, self._size = size.width, size
        # All in one, so that a Batch takes one copy to the device; 32 bits, as the kernel reads.
        sizes = (width, width, width, width + 1, width * size.depth)
        self._numbers = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
        self._positions, self._slots, self.held, self.key_ends, tables = self._numbers.split(sizes)
        self.tables = tables.view(width, size.depth)
        self.query_ends = torch.arange(width + 1, dtype=torch.int32, device=device)
        self.positions = self._write_to = self._positions
        self.most_rows = 1
        self.most_held = 0
        self._pools: Mapping[int, LayerPool] = {}
        self._places: torch.Tensor | None = None

    def put(self, padded: Padded) -> None:
        """Let the next pass be this Batch's."""
        rows = (*padded.positions, *padded.slots, *padded.held, *padded.held_ends)
        numbers = (*rows, *chain.from_iterable(padded.tables))
        self._numbers.copy_(torch.tensor(numbers, dtype=torch.int32))

    @contextmanager
    def over(self, pools: Mapping[int, LayerPool]) -> Iterator[None]:
        """Let passes inside the block read and write these pools, by Layer."""
        self._pools = pools
        self.most_held = self._size.depth * next(iter(pools.values())).block_positions
        try:
            yield
        finally:
            # Neither a pool's memory nor a capture's must be kept by what outlives them.
            self._pools, self._places = {}, None
            self.positions = self._write_to = self._positions

    def begin(self) -> None:
        """Begin a pass: what it makes of the numbers must be made in it, to be captured."""
        self.positions = self._positions.long()
        self._write_to = self._slots.long()
        self._places = None

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        layer: int,
        look: Look,
    ) -> torch.Tensor:
        """Attend `[1, heads, rows, size]`, each row to its Session; `[1, rows, heads, size]`."""
        pool = self._pools[layer]
        pool.write_at(self._write_to, key[0], value[0])
        if look.is_plain and varlen.is_able(query, value):
            return varlen.attend_together(query, pool, self, look.window, look.scaling)
        return self._attend_gathered(query[0].transpose(0, 1), pool, look).unsqueeze(0)

    def _attend_gathered(self, query: torch.Tensor, pool: LayerPool, look: Look) -> torch.Tensor:
        """Attend `[rows, heads, size]`; returns `[rows, heads, value size]`."""
        width, depth = self._size.width, self.most_held
        if width * depth > MOST_GATHERED:
            raise TooDeepError
        if self._places is None:
            self._places = self._look_up(pool.block_positions)
        keys, values = (
            tensor.unflatten(0, (width, depth)).transpose(1, 2)
            for tensor in pool.read_at(self._places)
        )
        mask = self._mask(look.window)
        if not look.is_plain:
            return written_out(query.unsqueeze(2), keys, values, mask, look).squeeze(2)
        # As in plain attention, query heads that share a KV head become its rows.
        grouped = query.unflatten(1, (keys.shape[1], -1))
        attended = scaled_dot_product_attention(
            grouped, keys, values, attn_mask=mask, scale=look.scaling
        )
        return attended.flatten(1, 2)

    def _look_up(self, block_positions: int) -> torch.Tensor:
        columns = torch.arange(self.most_held, device=self.held.device)
        starts = (self.tables.long() * block_positions).repeat_interleave(block_positions, dim=1)
        places = starts + columns % block_positions
        # A mask does not help against what is not a number, and nobody knows what lies beyond a
        # Session's end: its own first position is read there instead.
        is_held = columns < self.held.unsqueeze(1)
        return torch.where(is_held, places, places[:, :1]).flatten()

    def _mask(self, window: int | None) -> torch.Tensor:
        """True where a row may look: `[rows, 1, 1, depth]`."""
        columns = torch.arange(self.most_held, device=self.held.device)
        held = self.held.unsqueeze(1)
        allowed = columns < held
        if window is not None:
            allowed &= columns >= held - window
        mask: torch.Tensor = allowed[:, None, None]
        return mask
