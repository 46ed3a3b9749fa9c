"""Payloads of Activation Frames: raw little-endian numbers, compressed without loss.

The top byte of a float (sign and most of the exponent) repeats, its low bytes are noise. So the
bytes are split into planes and only the top plane goes through zstd; a payload that is small or
does not shrink travels raw. The decoded size is known beforehand and bounds the decompression.
"""

import zstandard

from meshnet_common.errors import ProtocolError
from meshnet_common.protocol.frames import FLAG_BYTE_PLANES, FLAG_ZSTD

ZSTD_LEVEL = 1
MIN_PACKED_BYTES = 4096
"""A Decode Step's few hundred numbers fit one network packet anyway, and latency is what counts."""
ZSTD_MAX_WINDOW_BYTES = 8 * 1024 * 1024

_compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_content_size=True)
_decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_MAX_WINDOW_BYTES)


def pack_payload(raw: bytes, width: int) -> tuple[int, bytes]:
    """Compress numbers of `width` bytes each; returns the frame's flags and the wire bytes."""
    if len(raw) < MIN_PACKED_BYTES:
        return 0, raw
    top_plane = raw[width - 1 :: width]
    packed_top = _compressor.compress(top_plane)
    if len(packed_top) >= len(top_plane):
        return 0, raw
    low_planes = [raw[offset::width] for offset in range(width - 1)]
    return FLAG_ZSTD | FLAG_BYTE_PLANES, b"".join((packed_top, *low_planes))


def unpack_payload(flags: int, wire: bytes, width: int, raw_bytes: int) -> bytes:
    """Restore exactly `raw_bytes` bytes of numbers of `width` bytes.

    Raises ProtocolError when the wire bytes would decode to anything else, before allocating it.
    """
    if not flags & FLAG_ZSTD:
        if len(wire) != raw_bytes:
            raise ProtocolError(f"A raw payload has {len(wire)} bytes instead of {raw_bytes}.")
        return wire
    if not flags & FLAG_BYTE_PLANES:
        return _decompress(wire, raw_bytes)
    return _join_planes(wire, width, raw_bytes)


def _join_planes(wire: bytes, width: int, raw_bytes: int) -> bytes:
    count, remainder = divmod(raw_bytes, width)
    packed_top_bytes = len(wire) - count * (width - 1)
    if remainder or packed_top_bytes < 0:
        raise ProtocolError(f"Planes in {len(wire)} bytes cannot hold {raw_bytes} bytes.")
    raw = bytearray(raw_bytes)
    raw[width - 1 :: width] = _decompress(wire[:packed_top_bytes], count)
    for offset in range(width - 1):
        low_start = packed_top_bytes + offset * count
        raw[offset::width] = wire[low_start : low_start + count]
    return bytes(raw)


def _decompress(packed: bytes, raw_bytes: int) -> bytes:
    # The declared size is checked first: a bomb is refused before its first byte is inflated.
    try:
        declared = zstandard.get_frame_parameters(packed).content_size
        if declared != raw_bytes:
            raise ProtocolError(f"zstd declares {declared} bytes instead of {raw_bytes}.")
        raw = _decompressor.decompress(packed, max_output_size=raw_bytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ProtocolError(f"zstd refuses a payload: {error}.") from error
    if len(raw) != raw_bytes:
        raise ProtocolError(f"zstd held {len(raw)} bytes instead of {raw_bytes}.")
    return raw
