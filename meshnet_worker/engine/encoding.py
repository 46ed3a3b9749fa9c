"""Texts that wait for an encoder; some of them run between two Batches, never all at once.

Requests take turns, a pass each, so that one with a few texts does not wait for all of another's.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from meshnet_worker.engine.encoder import Encoder, in_buckets
from meshnet_worker.engine_port import (
    DropTexts,
    EncodeFailed,
    EncodeTexts,
    Event,
    TextsEncoded,
)

PADDED_TOKENS = 2048
"""Tokens of one pass, filled up to the longest of its texts; a Batch waits for no more."""


@dataclass(slots=True)
class _Waiting:
    command: EncodeTexts
    texts: tuple[torch.Tensor, ...]
    buckets: deque[list[int]]
    vectors: torch.Tensor | None = None


class Encoding:
    """The requests that were not answered yet; the first one's turn is next."""

    def __init__(
        self, encoders: Mapping[int, Encoder], send: Callable[[Event, bytes], None]
    ) -> None:
        self._encoders = encoders
        self._send = send
        self._waiting: deque[_Waiting] = deque()

    @property
    def has_work(self) -> bool:
        return bool(self._waiting)

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
        buckets = in_buckets(command.lengths, PADDED_TOKENS)
        self._waiting.append(_Waiting(command, texts, deque(buckets)))

    def drop(self, request: int) -> None:
        """Do no more for a request; it may have been answered."""
        self._waiting = deque(one for one in self._waiting if one.command.request != request)

    def step(self) -> None:
        """Run one pass of the request whose turn it is, which is answered with its last one."""
        asked = self._waiting.popleft()
        try:
            self._run(asked, self._encoders[asked.command.shard])
        except Exception as error:  # noqa: BLE001 - a model's own code raises anything
            reason = f"{type(error).__name__}: {error}"
            self._send(EncodeFailed(asked.command.request, reason), b"")
            return
        if asked.buckets:
            self._waiting.append(asked)
            return
        assert asked.vectors is not None
        self._send(TextsEncoded(asked.command.request), asked.vectors.numpy().tobytes())

    def _run(self, asked: _Waiting, encoder: Encoder) -> None:
        places = asked.buckets.popleft()
        vectors = encoder.encode([asked.texts[place] for place in places])
        if asked.vectors is None:
            asked.vectors = torch.empty(len(asked.texts), vectors.shape[1], dtype=torch.float32)
        asked.vectors[places] = vectors
