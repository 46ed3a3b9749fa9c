"""How what the daemon and its engine process say travels over a socket pair; pure bytes.

Each message is two lengths, a MessagePack struct and raw bytes: hidden states, row-major, in the
Shard's dtype. Both ends run the same release, so this format has no version.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from meshnet_worker.engine_port import Command, Event

LENGTHS = struct.Struct("<II")


class Message(NamedTuple):
    """A command or an event, with its raw bytes."""

    body: Command | Event
    payload: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Command | Event] = msgspec.msgpack.Decoder(Command | Event)


def encode_message(body: Command | Event, payload: bytes = b"") -> bytes:
    """Lay a message out for the socket."""
    header = _encoder.encode(body)
    return b"".join((LENGTHS.pack(len(header), len(payload)), header, payload))


class MessageParser:
    """Cuts the byte stream of either end into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def messages(self) -> Iterator[Message]:
        while len(self._buffer) >= LENGTHS.size:
            header_bytes, payload_bytes = LENGTHS.unpack_from(self._buffer)
            header_end = LENGTHS.size + header_bytes
            end = header_end + payload_bytes
            if len(self._buffer) < end:
                return
            body = _decoder.decode(self._buffer[LENGTHS.size : header_end])
            payload = bytes(self._buffer[header_end:end])
            del self._buffer[:end]
            yield Message(body, payload)
