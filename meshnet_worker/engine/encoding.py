"""Texts that wait for an encoder; some of them run between two Batches, never all at once.

Requests take turns, a pass each, so that one with a few texts does not wait for all of another's.
While Batches run, a pass is followed by a rest as long as it was: half of the time is theirs,
however slow this device is.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from meshnet_worker.engine.encoder import Encoder
from meshnet_worker.engine.encoder_passes import PassSize, shortest_first, take_pass
from meshnet_worker.engine_port import (
    DropTexts,
    EncodeFailed,
    EncodeTexts,
    Event,
    TextsEncoded,
)


@dataclass(slots=True)
class _Waiting:
    command: EncodeTexts
    texts: tuple[torch.Tensor, ...]
    places: deque[int]
    """Of the texts that have no vector yet."""
    vectors: torch.Tensor | None = None


class Encoding:
    """The requests that were not answered yet; the first one's turn is next."""

    def __init__(
        self,
        encoders: Mapping[int, Encoder],
        send: Callable[[Event, bytes], None],
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._encoders = encoders
        self._send = send
        self._now = now
        self._waiting: deque[_Waiting] = deque()
        self._sizes: dict[int, PassSize] = {}
        self._rest_seconds = 0.0
        self._rests_until = 0.0

    @property
    def has_work(self) -> bool:
        return bool(self._waiting)

    def wait_seconds(self) -> float:
        """How long the next pass still leaves the device to Batches."""
        return max(0.0, self._rests_until - self._now())

    def give_way(self) -> None:
        """Hear that a Batch has run: there are others, who get as much time as the last pass."""
        self._rests_until += self._rest_seconds
        self._rest_seconds = 0.0

    def hear(self, command: EncodeTexts | DropTexts, payload: bytes) -> None:
        """Take a request, or no more trouble with one."""
        match command:
            case EncodeTexts():
                self.add(command, payload)
            case DropTexts(request=request):
                self.drop(request)

    def add(self, command: EncodeTexts, payload: bytes) -> None:
        """Take a request; its payload is the token ids of all its texts, little-endian int32."""
        ids = torch.frombuffer(bytearray(payload), dtype=torch.int32).long()
        texts = ids.split(list(command.lengths))
        self._waiting.append(_Waiting(command, texts, shortest_first(command.lengths)))

    def drop(self, request: int) -> None:
        """Do no more for a request; it may have been answered."""
        self._waiting = deque(one for one in self._waiting if one.command.request != request)

    def step(self) -> None:
        """Run one pass of the request whose turn it is, which is answered with its last one."""
        asked, began = self._waiting.popleft(), self._now()
        try:
            tokens = self._run(asked, self._encoders[asked.command.shard])
        except Exception as error:  # noqa: BLE001 - a model's own code raises anything
            reason = f"{type(error).__name__}: {error}"
            self._send(EncodeFailed(asked.command.request, reason), b"")
            return
        self._rests_until = self._now()
        self._rest_seconds = self._rests_until - began
        self._size(asked).ran(tokens, self._rest_seconds)
        if asked.places:
            self._waiting.append(asked)
            return
        assert asked.vectors is not None
        self._send(TextsEncoded(asked.command.request), asked.vectors.numpy().tobytes())

    def _size(self, asked: _Waiting) -> PassSize:
        return self._sizes.setdefault(asked.command.shard, PassSize())

    def _run(self, asked: _Waiting, encoder: Encoder) -> int:
        """Run one pass; returns its tokens, with those that fill it up."""
        lengths = asked.command.lengths
        places = take_pass(asked.places, lengths, self._size(asked).tokens)
        vectors = encoder.encode([asked.texts[place] for place in places])
        if asked.vectors is None:
            asked.vectors = torch.empty(len(asked.texts), vectors.shape[1], dtype=torch.float32)
        asked.vectors[places] = vectors
        return len(places) * max(lengths[place] for place in places)
