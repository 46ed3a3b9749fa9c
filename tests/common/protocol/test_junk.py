"""Whatever bytes come, readers give a value or their one error, in bounded memory."""

import tracemalloc
from collections.abc import Callable

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.errors import ProtocolError, TicketError
from meshnet_common.protocol.bodies import from_frame, to_frame
from meshnet_common.protocol.frames import FrameParser, decode_frame
from meshnet_common.protocol.tickets import ticket_key_id, verify_ticket
from tests.common.builders import KEY_ID, signing_key, ticket, token_of
from tests.common.protocol.junk import JUNK, changed, greedy_frames

PUBLIC = signing_key().public_key()
MIB = 1 << 20


@given(JUNK)
def test_junk_is_read_or_refused(junk: bytes) -> None:
    try:
        body = from_frame(decode_frame(junk))
    except ProtocolError:
        return
    assert from_frame(to_frame(body)) == body or body != body


@given(st.lists(JUNK, max_size=4), st.integers(1, 64))
def test_a_stream_of_junk_is_read_until_its_first_bad_frame(junk: list[bytes], size: int) -> None:
    parser, stream = FrameParser(), b"".join(junk)
    try:
        for start in range(0, len(stream), size):
            parser.feed(stream[start : start + size])
            for frame in parser.frames():
                from_frame(frame)
    except ProtocolError:
        pass


@given(changed(token_of(ticket()).encode()))
def test_a_changed_ticket_is_refused(token: bytes) -> None:
    text = token.decode("utf-8", "surrogateescape")
    if text == token_of(ticket()):
        return
    with pytest.raises(TicketError):
        verify_ticket(text, PUBLIC)
    try:
        key_id = ticket_key_id(text)
    except TicketError:
        return
    assert isinstance(key_id, str)


@given(st.dictionaries(st.sampled_from(ticket().__struct_fields__), st.none() | st.text()))
def test_claims_of_another_shape_are_refused_whoever_signed_them(claims: dict[str, object]) -> None:
    token = jwt.encode(claims, signing_key(), algorithm="EdDSA", headers={"kid": KEY_ID})
    with pytest.raises(TicketError):
        verify_ticket(token, PUBLIC)


def peak_bytes(read: Callable[[bytes], object], data: bytes) -> int:
    tracemalloc.start()
    try:
        read(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def refuse(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        from_frame(decode_frame(data))


@pytest.mark.parametrize("name", greedy_frames())
def test_a_greedy_frame_gets_no_more_memory_than_it_has_bytes(name: str) -> None:
    data = greedy_frames()[name]
    assert peak_bytes(refuse, data) < 4 * len(data) + 100_000


def test_the_longest_ticket_costs_little_memory() -> None:
    def refuse_ticket(data: bytes) -> None:
        with pytest.raises(TicketError):
            verify_ticket(data.decode(), PUBLIC)

    header, _, signature = token_of(ticket()).split(".")
    for claims in ("A" * 60_000, "eyJh" * 15_000, ""):
        data = f"{header}.{claims}.{signature}".encode()
        assert peak_bytes(refuse_ticket, data) < MIB
