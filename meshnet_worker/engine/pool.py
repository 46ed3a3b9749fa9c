"""The KV Blocks of a Shard: one pool per Layer, keys and values written in place.

Paged as in Kwon et al., "Efficient Memory Management for Large Language Model Serving with
PagedAttention" (2023), but blocks of a Session follow each other wherever there is room, so that
its keys and values are read where they lie. The daemon alone judges who may hold how much; a pool
that runs out means that its count and this one differ.
"""

from dataclasses import dataclass, field

import torch

from meshnet_worker.engine.blocks import FreeBlocks


class LayerPool:
    """The blocks of one Layer; tensors are `[blocks, block positions, KV heads, size]`."""

    def __init__(self, blocks: int, block_positions: int, scratch_blocks: int = 0) -> None:
        self.block_positions = block_positions
        self._blocks = blocks
        self._scratch_blocks = scratch_blocks
        self._free = FreeBlocks(blocks)
        self._tables: dict[int, _Table] = {}
        # Flat, `[blocks x block positions, KV heads, size]`: a view less at every step.
        self._keys: torch.Tensor | None = None
        self._values: torch.Tensor | None = None

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    @property
    def is_used(self) -> bool:
        return bool(self._tables)

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """All keys and all values by block; they exist once something was written."""
        assert self._keys is not None
        assert self._values is not None
        return self._by_block(self._keys), self._by_block(self._values)

    @property
    def _positions(self) -> int:
        return (self._blocks + self._scratch_blocks) * self.block_positions

    @property
    def scratch(self) -> int | None:
        """A block behind those that Sessions may hold, for rows of nobody; None without one."""
        return self._blocks if self._scratch_blocks else None

    @property
    def address(self) -> tuple[int, int, int]:
        """Where its tensors are, and how large: what a captured pass relies on; 0 without any."""
        if self._keys is None or self._values is None:
            return (0, 0, 0)
        return (self._keys.data_ptr(), self._values.data_ptr(), len(self._keys))

    def blocks_of(self, session: int) -> list[int]:
        return self._tables[session].blocks

    def reserve(self, session: int, positions: int) -> None:
        """Hold blocks for `positions` of a Session in all; raises ValueError without them."""
        table = self._tables.setdefault(session, _Table())
        missing = -(-positions // self.block_positions) - len(table.blocks)
        if missing <= 0:
            return
        more = self._free.take_at(table.blocks[-1] + 1, missing) if table.blocks else []
        if not more and self._move(table, len(table.blocks) + missing):
            return
        more = more or self._free.take_any(missing)
        if not more:
            if not table.blocks:
                del self._tables[session]
            raise ValueError(f"{missing} KV blocks are needed, {self.free_blocks} are free")
        table.put([*table.blocks, *more])

    def release(self, session: int) -> None:
        table = self._tables.pop(session, None)
        if table is not None:
            self._free.give(table.blocks)

    def resize(self, blocks: int) -> None:
        """Have so many blocks from now on; what Sessions hold moves. Raises ValueError."""
        held = sum(len(table.blocks) for table in self._tables.values())
        if blocks < held:
            raise ValueError(f"{held} KV blocks are held, and only {blocks} are to be left")
        if blocks == self._blocks:
            return
        self._blocks, self._free = blocks, FreeBlocks(blocks)
        old = [(table, table.blocks) for table in self._tables.values() if table.blocks]
        for table, was in old:
            table.put(self._free.take_any(len(was)))
        self._keys = self._moved(self._keys, old)
        self._values = self._moved(self._values, old)

    def write(
        self, session: int, position: int, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write `[KV heads, tokens, size]` at `position`; return all up to there.

        Views where the Session's blocks follow each other, else copies.
        """
        if self._keys is None:
            self._keys, self._values = self._allocate(key), self._allocate(value)
        assert self._values is not None
        table = self._tables[session]
        tokens = key.shape[1]
        if table.start is None:
            return self._write_apart(table, position, key, value)
        # `narrow` does what a slice does, in half the time; this runs once a Layer and step.
        first = table.start * self.block_positions
        self._keys.narrow(0, first + position, tokens).copy_(key.transpose(0, 1))
        self._values.narrow(0, first + position, tokens).copy_(value.transpose(0, 1))
        held = position + tokens
        return (
            self._keys.narrow(0, first, held).transpose(0, 1),
            self._values.narrow(0, first, held).transpose(0, 1),
        )

    def write_at(self, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Write `[KV heads, rows, size]` at slots `[rows]`: block x block positions + position."""
        if self._keys is None:
            self._keys, self._values = self._allocate(key), self._allocate(value)
        assert self._values is not None
        self._keys.index_copy_(0, slots, key.transpose(0, 1))
        self._values.index_copy_(0, slots, value.transpose(0, 1))

    def read_at(self, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values at slots `[rows]`, each `[rows, KV heads, size]`."""
        assert self._keys is not None
        assert self._values is not None
        return self._keys.index_select(0, slots), self._values.index_select(0, slots)

    def _write_apart(
        self, table: "_Table", position: int, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        all_keys, all_values = self.tensors
        held = position + key.shape[1]
        places = torch.arange(position, held, device=key.device)
        index = table.index(key.device)
        blocks, rows = index[places // self.block_positions], places % self.block_positions
        all_keys[blocks, rows] = key.transpose(0, 1)
        all_values[blocks, rows] = value.transpose(0, 1)
        keys, values = all_keys[index].flatten(0, 1), all_values[index].flatten(0, 1)
        return keys[:held].transpose(0, 1), values[:held].transpose(0, 1)

    def _move(self, table: "_Table", count: int) -> bool:
        # One copy now, instead of a copy at every step of a Session whose blocks lie apart.
        run = self._free.take_run(count)
        if not run:
            return False
        if self._keys is not None and table.blocks:
            for tensor in self.tensors:
                tensor[run[: len(table.blocks)]] = tensor[table.blocks]
        self._free.give(table.blocks)
        table.put(run)
        return True

    def _moved(
        self, tensor: torch.Tensor | None, old: "list[tuple[_Table, list[int]]]"
    ) -> torch.Tensor | None:
        if tensor is None:
            return None
        moved = tensor.new_empty((self._positions, *tensor.shape[1:]))
        for table, was in old:
            self._by_block(moved)[table.blocks] = self._by_block(tensor)[was]
        return moved

    def _allocate(self, like: torch.Tensor) -> torch.Tensor:
        return like.new_empty((self._positions, like.shape[0], like.shape[2]))

    def _by_block(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view(-1, self.block_positions, *tensor.shape[1:])


@dataclass(slots=True)
class _Table:
    """The blocks of one Session, in the order of its positions."""

    blocks: list[int] = field(default_factory=list)
    start: int | None = None
    """The first block, if the others follow it one by one."""
    _index: torch.Tensor | None = None

    def put(self, blocks: list[int]) -> None:
        self.blocks = blocks
        follows = blocks == list(range(blocks[0], blocks[0] + len(blocks)))
        self.start = blocks[0] if follows else None
        self._index = None

    def index(self, device: torch.device) -> torch.Tensor:
        if self._index is None:
            self._index = torch.tensor(self.blocks, device=device)
        return self._index


class BlockPool:
    """The pools of all Layers of one Shard."""

    def __init__(self, block_positions: int, blocks: int = 0, scratch_blocks: int = 0) -> None:
        self.block_positions = block_positions
        self._blocks = blocks
        self._scratch_blocks = scratch_blocks
        self._layers: dict[int, LayerPool] = {}

    def layer(self, layer: int) -> LayerPool:
        pool = self._layers.get(layer)
        if pool is None:
            pool = LayerPool(self._blocks, self.block_positions, self._scratch_blocks)
            self._layers[layer] = pool
        return pool

    def resize(self, blocks: int) -> None:
        """Give every Layer so many blocks; raises ValueError when Sessions hold more.

        A Layer that nobody uses gives its memory back until somebody does.
        """
        self._layers = {layer: pool for layer, pool in self._layers.items() if pool.is_used}
        self._blocks = blocks
        for pool in self._layers.values():
            pool.resize(blocks)

    def free_blocks(self) -> dict[int, int]:
        """Free blocks by Layer."""
        return {layer: pool.free_blocks for layer, pool in sorted(self._layers.items())}
