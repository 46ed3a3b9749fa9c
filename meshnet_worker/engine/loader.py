"""Loads and drops Layers between Batches, one Layer at a time, and reports how far it is."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from meshnet_common.errors import MeshnetError
from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine.arena import return_freed_memory
from meshnet_worker.engine.encoder import Encoder, is_encoder
from meshnet_worker.engine.shard import Shard, ShardSource
from meshnet_worker.engine_port import (
    DropLayers,
    Event,
    LayersDropped,
    LayersLoaded,
    LoadFailed,
    LoadLayers,
    LoadProgressed,
)


@dataclass(slots=True)
class _Load:
    command: LoadLayers
    steps: Iterator[int]
    bytes_total: int
    bytes_done: int = 0


class Loader:
    """The Shards on this device and the loads that are under way."""

    def __init__(self, device: torch.device, send: Callable[[Event, bytes], None]) -> None:
        self.shards: dict[int, Shard] = {}
        self.encoders: dict[int, Encoder] = {}
        self.compiles = True
        """Whether new Shards may compile their Decode Steps."""
        self._device = device
        self._send = send
        self._commands: deque[LoadLayers] = deque()
        self._current: _Load | None = None

    @property
    def has_work(self) -> bool:
        return self._current is not None or bool(self._commands)

    def add(self, command: LoadLayers) -> None:
        self._commands.append(command)

    def drop(self, command: DropLayers) -> None:
        shard = self._find(command.shard)
        assert shard is not None
        shard.drop(ShardRange(command.start, command.end))
        if shard.loaded is None:
            self._forget(command.shard)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return_freed_memory()
        self._send(LayersDropped(command.shard, command.start, command.end), b"")

    def step(self) -> None:
        """Load one Layer; a load that fails takes back what it loaded, and only that."""
        try:
            load = self._current or self._begin(self._commands[0])
            self._current = load
            self._advance(load)
        except Exception as error:  # noqa: BLE001 - transformers raises anything for a bad folder
            self._abandon(f"{error}" if isinstance(error, MeshnetError) else repr(error))

    def _begin(self, command: LoadLayers) -> _Load:
        shard = self._find(command.shard) or self._open(command)
        wanted = ShardRange(command.start, command.end)
        shard.check_loadable(wanted)
        return _Load(command, shard.load(wanted), shard.bytes_of(wanted))

    def _open(self, command: LoadLayers) -> Shard | Encoder:
        source = ShardSource(
            folder=command.folder,
            dtype=getattr(torch, command.dtype),
            device=self._device,
            quantization=command.quantization,
            gguf=command.gguf,
            compiles=self.compiles,
        )
        if is_encoder(command.folder):
            encoder = self.encoders[command.shard] = Encoder(source)
            return encoder
        shard = self.shards[command.shard] = Shard(source, lambda noted: self._send(noted, b""))
        return shard

    def _find(self, number: int) -> Shard | Encoder | None:
        return self.shards.get(number) or self.encoders.get(number)

    def _forget(self, number: int) -> None:
        self.shards.pop(number, None)
        self.encoders.pop(number, None)

    def _advance(self, load: _Load) -> None:
        command = load.command
        step_bytes = next(load.steps, None)
        return_freed_memory()
        if step_bytes is not None:
            load.bytes_done += step_bytes
            self._send(LoadProgressed(command.shard, load.bytes_done, load.bytes_total), b"")
            return
        self._end()
        shard = self._find(command.shard)
        assert shard is not None
        loaded = LayersLoaded(
            shard=command.shard,
            start=command.start,
            end=command.end,
            hidden_size=shard.hidden_size,
            layer_bytes=shard.layer_bytes_of(ShardRange(command.start, command.end)),
        )
        self._send(loaded, b"")

    def _abandon(self, reason: str) -> None:
        command = self._commands[0]
        shard = self._find(command.shard)
        if shard is not None:
            shard.unload_unfinished()
            if shard.loaded is None:
                self._forget(command.shard)
        self._end()
        self._send(LoadFailed(command.shard, command.start, command.end, reason), b"")

    def _end(self) -> None:
        self._current = None
        self._commands.popleft()
