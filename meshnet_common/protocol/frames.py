"""The frame: the envelope of every message between Workers; bytes in, values out.

    offset size  field
    0      4     magic "MNF1"
    4      1     kind
    5      1     flags     bit 0 zstd, bit 1 byte planes
    6      2     header length H (u16 LE)
    8      4     payload length P on the wire (u32 LE)
    12     4     xxh32 of the payload on the wire
    16     H     header, MessagePack
    16+H   P     payload

A reader knows both lengths before it reads either, and refuses them before it allocates.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

import xxhash

from meshnet_common.errors import ProtocolError

MAGIC = b"MNF1"
PREFIX = struct.Struct("<4sBBHII")
PREFIX_BYTES = PREFIX.size
MAX_HEADER_BYTES = 0xFFFF
MAX_PAYLOAD_BYTES = 64 * 1024 * 1024

FLAG_ZSTD = 1
FLAG_BYTE_PLANES = 2
KNOWN_FLAGS = FLAG_ZSTD | FLAG_BYTE_PLANES


class FrameKind(IntEnum):
    """What a frame carries; the numbers are the wire's."""

    ACTIVATIONS = 1
    TOKENS = 2
    OPEN = 3
    OPENED = 4
    CLOSE = 5
    ERROR = 6
    PROGRESS = 7
    PING = 8
    PONG = 9
    REPLAY = 10


class Frame(NamedTuple):
    """One frame as it travels: header and payload still encoded."""

    kind: FrameKind
    flags: int
    header: bytes
    payload: bytes


class _Prefix(NamedTuple):
    kind: FrameKind
    flags: int
    header_bytes: int
    payload_bytes: int
    checksum: int

    @property
    def frame_bytes(self) -> int:
        return PREFIX_BYTES + self.header_bytes + self.payload_bytes


def encode_frame(frame: Frame) -> bytes:
    """Lay a frame out for the wire; raises ProtocolError if a part is over its limit."""
    if len(frame.header) > MAX_HEADER_BYTES:
        raise ProtocolError(f"A header of {len(frame.header)} bytes is over {MAX_HEADER_BYTES}.")
    prefix = PREFIX.pack(
        MAGIC,
        frame.kind,
        frame.flags,
        len(frame.header),
        len(frame.payload),
        xxhash.xxh32_intdigest(frame.payload),
    )
    return b"".join((prefix, frame.header, frame.payload))


def decode_frame(data: bytes, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> Frame:
    """Read exactly one frame, as a WebSocket message or HTTP body carries it.

    Raises ProtocolError for junk, truncation, an oversized length, trailing bytes, an unknown
    kind or flag, and a wrong checksum.
    """
    if len(data) < PREFIX_BYTES:
        raise ProtocolError(f"A frame of {len(data)} bytes is shorter than its prefix.")
    prefix = _read_prefix(data, max_payload_bytes)
    if len(data) != prefix.frame_bytes:
        raise ProtocolError(f"A frame of {prefix.frame_bytes} bytes came as {len(data)} bytes.")
    return _read_body(data, prefix)


class FrameParser:
    """Cuts a byte stream of any chunking into frames; holds at most one unfinished frame."""

    def __init__(self, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        self._buffer = bytearray()
        self._max_payload_bytes = max_payload_bytes

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def frames(self) -> Iterator[Frame]:
        """Yield every whole frame that has arrived; raises ProtocolError at the first bad one."""
        while len(self._buffer) >= PREFIX_BYTES:
            prefix = _read_prefix(self._buffer, self._max_payload_bytes)
            if len(self._buffer) < prefix.frame_bytes:
                return
            data = bytes(self._buffer[: prefix.frame_bytes])
            del self._buffer[: prefix.frame_bytes]
            yield _read_body(data, prefix)


def _read_prefix(data: bytes | bytearray, max_payload_bytes: int) -> _Prefix:
    magic, kind, flags, header_bytes, payload_bytes, checksum = PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise ProtocolError(f"A frame starts with {MAGIC!r}, not {magic!r}.")
    if flags & ~KNOWN_FLAGS:
        raise ProtocolError(f"Flags {flags:#04x} are unknown.")
    if payload_bytes > max_payload_bytes:
        raise ProtocolError(f"A payload of {payload_bytes} bytes is over {max_payload_bytes}.")
    try:
        known_kind = FrameKind(kind)
    except ValueError as error:
        raise ProtocolError(f"Kind {kind} is unknown.") from error
    return _Prefix(known_kind, flags, header_bytes, payload_bytes, checksum)


def _read_body(data: bytes, prefix: _Prefix) -> Frame:
    payload_start = PREFIX_BYTES + prefix.header_bytes
    payload = data[payload_start:]
    if xxhash.xxh32_intdigest(payload) != prefix.checksum:
        raise ProtocolError("The checksum of a payload is wrong.")
    return Frame(prefix.kind, prefix.flags, data[PREFIX_BYTES:payload_start], payload)
