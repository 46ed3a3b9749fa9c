"""What each reader is fuzzed from: what it must be able to read, above all."""

import base64

from bench.fuzz_targets import BODY, PAYLOAD
from meshnet_common.protocol.frames import FrameKind, decode_frame
from meshnet_common.protocol.payload import pack_payload
from tests.common.builders import ticket, token_of
from tests.common.protocol.junk import FRAMES, greedy_frames

TOKEN = token_of(ticket())
KEYS = b'{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"k","x":"%s"}]}' % (b"A" * 43)
NUMBERS = (b"abcd" * 3, bytes(8192), b"ab" * 4096)


def _as_body(wire: bytes) -> bytes:
    frame = decode_frame(wire)
    kind = tuple(FrameKind).index(frame.kind)
    return BODY.pack(kind, frame.flags, len(frame.header)) + frame.header + frame.payload


def _as_payload(raw: bytes, width: int) -> bytes:
    flags, wire = pack_payload(raw, width)
    return PAYLOAD.pack(flags, width // 2 - 1, len(raw)) + wire


SEEDS: dict[str, tuple[bytes, ...]] = {
    "stream": (*FRAMES, b"".join(FRAMES), *greedy_frames().values()),
    "body": tuple(_as_body(wire) for wire in FRAMES),
    "payload": tuple(_as_payload(raw, width) for raw in NUMBERS for width in (2, 4)),
    "token": (TOKEN.encode(), b"a.b.c"),
    "claims": (base64.urlsafe_b64decode(TOKEN.split(".")[1] + "=="), b"{}"),
    "keys": (KEYS, b"{}"),
}
