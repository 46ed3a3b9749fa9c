"""Bodies that no header holds."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.errors import ProtocolError
from meshnet_common.protocol.bodies import (
    MAX_LONG_BODY_BYTES,
    Body,
    ChosenToken,
    OpenBody,
    TokensBody,
    from_frame,
    to_frame,
)
from meshnet_common.protocol.frames import (
    MAX_HEADER_BYTES,
    Frame,
    FrameKind,
    decode_frame,
    encode_frame,
)
from meshnet_common.protocol.sampling import History, TokenLogprobs
from tests.common.protocol.test_bodies import EPOCH, SAMPLING

LONG_ANSWER = OpenBody(
    ticket="t",
    max_positions=9,
    sampling=SAMPLING,
    history=History(answer_start=3, answer_ids=tuple(range(100_000))),
)
MANY_TOKENS = TokensBody(
    tokens=tuple(
        ChosenToken("s1", EPOCH, position, 42, TokenLogprobs(-0.5, ((42, -0.5),) * 20))
        for position in range(512)
    )
)


@pytest.mark.parametrize("body", [LONG_ANSWER, MANY_TOKENS], ids=lambda body: type(body).__name__)
def test_what_no_header_holds_travels_as_payload(body: Body) -> None:
    frame = to_frame(body)
    assert (frame.header, len(frame.payload) > MAX_HEADER_BYTES) == (b"", True)
    assert from_frame(decode_frame(encode_frame(frame))) == body


def test_what_a_header_holds_stays_there() -> None:
    ids = (70_000,) * ((MAX_HEADER_BYTES - 400) // 5)
    history = History(answer_start=3, answer_ids=ids)
    frame = to_frame(msgspec.structs.replace(LONG_ANSWER, history=history))
    assert (len(frame.header) > MAX_HEADER_BYTES - 500, frame.payload) == (True, b"")


@given(st.binary(max_size=120))
def test_a_random_payload_in_place_of_a_header_is_refused(payload: bytes) -> None:
    for kind in FrameKind:
        with pytest.raises(ProtocolError):
            from_frame(Frame(kind, 0, b"", payload))


def test_a_body_that_is_too_long_is_refused_before_it_is_read() -> None:
    encoded = msgspec.msgpack.encode({"ticket": "t", "max_positions": 9})
    padded = encoded[:1].replace(b"\x82", b"\x83") + encoded[1:]
    padded += msgspec.msgpack.encode("pad") + msgspec.msgpack.encode(bytes(MAX_LONG_BODY_BYTES))
    with pytest.raises(ProtocolError, match="too long"):
        from_frame(Frame(FrameKind.OPEN, 0, b"", padded))
    fits = padded[: -MAX_LONG_BODY_BYTES - 5] + msgspec.msgpack.encode(bytes(1000))
    assert from_frame(Frame(FrameKind.OPEN, 0, b"", fits)) == OpenBody(ticket="t", max_positions=9)
