"""The readers that are fuzzed: each takes any bytes, and raises nothing but what is a finding."""

import struct
from collections.abc import Callable
from contextlib import suppress

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from meshnet_common.errors import ProtocolError, TicketError
from meshnet_common.protocol.bodies import from_frame, to_frame
from meshnet_common.protocol.frames import (
    KNOWN_FLAGS,
    MAX_HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    Frame,
    FrameKind,
    FrameParser,
    decode_frame,
    encode_frame,
)
from meshnet_common.protocol.payload import pack_payload, unpack_payload
from meshnet_common.protocol.tickets import ALGORITHM, ticket_key_id, verify_ticket
from meshnet_worker.tickets import read_key_set

PRIVATE = Ed25519PrivateKey.from_private_bytes(bytes(32))
PUBLIC = PRIVATE.public_key()
BODY = struct.Struct("<BBH")
PAYLOAD = struct.Struct("<BBI")


def stream(data: bytes) -> None:
    """Bytes on a link, in pieces."""
    parser = FrameParser()
    with suppress(ProtocolError):
        for start in range(0, len(data), 1000):
            parser.feed(data[start : start + 1000])
            for frame in parser.frames():
                assert decode_frame(encode_frame(frame)) == frame
                from_frame(frame)


def body(data: bytes) -> None:
    """A header and a payload whose frame is whole, so that no checksum guards their readers."""
    if len(data) < BODY.size:
        return
    kind, flags, header_bytes = BODY.unpack_from(data)
    header = data[BODY.size : BODY.size + header_bytes]
    kinds = tuple(FrameKind)
    frame = Frame(
        kinds[kind % len(kinds)],
        flags & KNOWN_FLAGS,
        header[:MAX_HEADER_BYTES],
        data[BODY.size + header_bytes :],
    )
    with suppress(ProtocolError):
        assert to_frame(from_frame(frame)).kind is frame.kind


def payload(data: bytes) -> None:
    """Numbers on the wire, compressed or not."""
    if len(data) < PAYLOAD.size:
        return
    flags, width, raw_bytes = PAYLOAD.unpack_from(data)
    width, raw_bytes = 2 + 2 * (width % 2), raw_bytes % (MAX_PAYLOAD_BYTES + 1)
    with suppress(ProtocolError):
        raw = unpack_payload(flags & KNOWN_FLAGS, data[PAYLOAD.size :], width, raw_bytes)
        assert len(raw) == raw_bytes
        assert (
            raw_bytes % width or unpack_payload(*pack_payload(raw, width), width, len(raw)) == raw
        )


def token(data: bytes) -> None:
    """What calls itself a Route Ticket."""
    text = data.decode("utf-8", "surrogateescape")
    with suppress(TicketError):
        ticket_key_id(text)
    with suppress(TicketError):
        verify_ticket(text, PUBLIC)


def claims(data: bytes) -> None:
    """What a Route Ticket claims, whoever signed it."""
    signed = jwt.api_jws.encode(data, PRIVATE, ALGORITHM, headers={"kid": "k"})
    with suppress(TicketError):
        verify_ticket(signed, PUBLIC)


def keys(data: bytes) -> None:
    """The keys that a Tracker shows."""
    with suppress(TicketError):
        read_key_set(data)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "stream": stream,
    "body": body,
    "payload": payload,
    "token": token,
    "claims": claims,
    "keys": keys,
}
