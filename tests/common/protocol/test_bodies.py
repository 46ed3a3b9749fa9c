from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.errors import ProtocolError
from meshnet_common.protocol.bodies import (
    MAX_FRAME_SEGMENTS,
    MAX_HIDDEN_SIZE,
    MAX_ID_CHARS,
    MAX_SEGMENT_TOKENS,
    SEGMENT_FILL,
    SEGMENT_SAMPLE,
    ActivationFrame,
    ActivationsHeader,
    Body,
    ChosenToken,
    CloseBody,
    ErrorBody,
    OpenBody,
    OpenedBody,
    PingBody,
    PongBody,
    ProgressBody,
    ReplayBody,
    Segment,
    TokensBody,
    from_frame,
    to_frame,
)
from meshnet_common.protocol.frames import (
    Frame,
    FrameKind,
    decode_frame,
    encode_frame,
)
from meshnet_common.protocol.sampling import History, Sampling, TokenLogprobs
from tests.common.builders import activations, segment

EPOCH = (3, 1)
SAMPLING = Sampling(
    temperature=0.5,
    top_p=0.9,
    seed=1,
    top_k=40,
    min_p=0.05,
    repetition_penalty=1.1,
    frequency_penalty=-0.5,
    presence_penalty=1.5,
    logit_bias=((5, -100.0), (9, 2.5)),
    end_ids=(0, 2),
    min_tokens=3,
    logprobs=5,
    grammar="start: /[0-9]+/",
)
BODIES: dict[FrameKind, Body] = {
    FrameKind.ACTIVATIONS: activations(segment(tokens=2), segment(5, session_id="s2")),
    FrameKind.TOKENS: TokensBody(
        tokens=(ChosenToken("s1", EPOCH, 7, 42, TokenLogprobs(-0.5, ((42, -0.5), (7, -1.5)))),)
    ),
    FrameKind.OPEN: OpenBody(
        ticket="t",
        max_positions=9,
        held=(3, 4),
        kept=(2, 0),
        sampling=SAMPLING,
        history=History(answer_start=3, answer_ids=(7, 8), prompt_ids=(4, 5, 6)),
    ),
    FrameKind.OPENED: OpenedBody(
        session_id="s1", epoch=EPOCH, held=(9, 5), credits=8, kept=(7, 0), capacity=40
    ),
    FrameKind.CLOSE: CloseBody(session_id="s1", epoch=EPOCH),
    FrameKind.ERROR: ErrorBody(session_id="s1", code="c", message="m", worker_id="w"),
    FrameKind.PROGRESS: ProgressBody(session_id="s1", epoch=EPOCH, position=128, waits=True),
    FrameKind.PING: PingBody(nonce=5),
    FrameKind.PONG: PongBody(nonce=5, oldest_step_seconds=0.25, overdue_seconds=0.125),
    FrameKind.REPLAY: ReplayBody(session_id="s1", epoch=EPOCH, start=3, tokens=9, last_hop=2),
}


def activations_frame(header: Any, payload: bytes = b"") -> Frame:
    return Frame(FrameKind.ACTIVATIONS, 0, msgspec.msgpack.encode(header), payload)


def header_of(*segments: list[Any], hidden_size: int = 1, dtype: str = "bfloat16") -> Any:
    return {"segments": segments, "hidden_size": hidden_size, "dtype": dtype}


def refuse(header: Any, payload: bytes = b"") -> None:
    with pytest.raises(ProtocolError):
        from_frame(activations_frame(header, payload))


@pytest.mark.parametrize("kind", FrameKind)
def test_every_kind_of_body_survives_the_wire(kind: FrameKind) -> None:
    frame = to_frame(BODIES[kind])
    assert frame.kind is kind
    assert from_frame(decode_frame(encode_frame(frame))) == BODIES[kind]


@given(
    st.lists(
        st.builds(
            Segment,
            session_id=st.text(max_size=8),
            epoch=st.tuples(st.integers(0, 9), st.integers(0, 9)),
            start=st.integers(0, 1 << 20),
            tokens=st.integers(1, 4),
            flags=st.sampled_from([0, SEGMENT_FILL, SEGMENT_SAMPLE]),
            last_hop=st.none() | st.integers(0, 9),
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 5),
    st.sampled_from(["bfloat16", "float16", "float32"]),
    st.data(),
)
def test_any_activations_survive_the_wire(
    segments: list[Segment], hidden_size: int, dtype: str, data: st.DataObject
) -> None:
    empty = activations(*segments, hidden_size=hidden_size, dtype=dtype)
    size = len(empty.hidden)
    hidden = data.draw(st.one_of(st.binary(min_size=size, max_size=size), st.just(bytes(size))))
    frame = ActivationFrame(empty.header, hidden)
    assert from_frame(decode_frame(encode_frame(to_frame(frame)))) == frame


@pytest.mark.parametrize("kind", FrameKind)
@given(header=st.binary(max_size=120))
def test_a_random_header_raises_nothing_but_a_protocol_error(
    kind: FrameKind, header: bytes
) -> None:
    with pytest.raises(ProtocolError):
        from_frame(Frame(kind, 0, header, b""))


@pytest.mark.parametrize("kind", FrameKind)
@given(data=st.data())
def test_a_changed_header_raises_nothing_but_a_protocol_error(
    kind: FrameKind, data: st.DataObject
) -> None:
    frame = to_frame(BODIES[kind])
    place = data.draw(st.integers(0, len(frame.header) - 1))
    byte = data.draw(st.binary(min_size=1, max_size=3))
    header = frame.header[:place] + byte + frame.header[place + 1 :]
    try:
        body = from_frame(frame._replace(header=header))
    except ProtocolError:
        return
    assert to_frame(body).kind is kind


@pytest.mark.parametrize("kind", FrameKind)
def test_a_truncated_header_is_refused(kind: FrameKind) -> None:
    frame = to_frame(BODIES[kind])
    for size in range(len(frame.header)):
        with pytest.raises(ProtocolError):
            from_frame(frame._replace(header=frame.header[:size]))


@pytest.mark.parametrize("kind", FrameKind)
def test_a_deeply_nested_header_is_refused(kind: FrameKind) -> None:
    nested = b"\x81\xa5extra" + b"\x91" * 60_000 + b"\x00"
    with pytest.raises(ProtocolError):
        from_frame(Frame(kind, 0, nested, b""))


@pytest.mark.parametrize("kind", [kind for kind in FrameKind if kind is not FrameKind.ACTIVATIONS])
def test_only_activations_have_a_payload(kind: FrameKind) -> None:
    with pytest.raises(ProtocolError):
        from_frame(to_frame(BODIES[kind])._replace(payload=b"x"))


def test_the_first_hop_gets_token_ids_and_no_hidden_states() -> None:
    header = ActivationsHeader((segment(tokens=2, token_ids=(4, 5)),), 0, "float32")
    frame = ActivationFrame(header, b"")
    assert from_frame(to_frame(frame)) == frame


def test_a_hidden_size_of_zero_needs_token_ids_in_every_segment() -> None:
    with_ids, without = ["s", [1, 0], 0, 1, 0, [4]], ["s", [1, 0], 1, 1, 0]
    refuse(header_of(with_ids, without, hidden_size=0))
    refuse(header_of(["s", [1, 0], 0, 1, 0, []], hidden_size=0))


@pytest.mark.parametrize("hidden_size", [-1, MAX_HIDDEN_SIZE + 1])
def test_a_hidden_size_out_of_range_is_refused(hidden_size: int) -> None:
    refuse(header_of(["s", [1, 0], 0, 1], hidden_size=hidden_size))


def test_an_unknown_dtype_is_refused() -> None:
    refuse(header_of(["s", [1, 0], 0, 1], dtype="int8"), b"\0")


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(["s", [1, 0], 0, 0], id="no tokens"),
        pytest.param(["s", [1, 0], 0, -1], id="negative tokens"),
        pytest.param(["s", [1, 0], 0, MAX_SEGMENT_TOKENS + 1], id="too many tokens"),
        pytest.param(["s", [1, 0], -1, 1], id="a negative start"),
        pytest.param(["s", [-1, 0], 0, 1], id="a negative incarnation"),
        pytest.param(["s", [1, -1], 0, 1], id="a negative rollback"),
        pytest.param(["s", [1, 0], 0, 2, 0, [7]], id="too few ids"),
        pytest.param(["s", [1, 0], 0, 1, 0, [7, 8]], id="too many ids"),
        pytest.param(["s", [1], 0, 1], id="half an epoch"),
        pytest.param(["s", [1, 0], 0, 1, 1, None, -1], id="a negative last Hop"),
    ],
)
def test_a_segment_out_of_range_is_refused(bad: list[Any]) -> None:
    refuse(header_of(bad), bytes(4))


def test_a_frame_has_at_least_one_segment_and_a_bounded_number() -> None:
    one = ["s", [1, 0], 0, 1]
    refuse(header_of())
    refuse(header_of(*[one] * (MAX_FRAME_SEGMENTS + 1)), bytes(2 * MAX_FRAME_SEGMENTS + 2))
    full = activations_frame(header_of(*[one] * MAX_FRAME_SEGMENTS), bytes(2 * MAX_FRAME_SEGMENTS))
    assert isinstance(from_frame(full), ActivationFrame)


def test_more_bytes_than_a_frame_may_hold_are_refused_before_they_are_unpacked() -> None:
    largest = ["s", [1, 0], 0, MAX_SEGMENT_TOKENS]
    refuse(header_of(largest, hidden_size=MAX_HIDDEN_SIZE, dtype="float32"))


@pytest.mark.parametrize("payload", [b"", b"abc", b"abcde"])
def test_a_payload_of_another_size_than_the_header_says_is_refused(payload: bytes) -> None:
    refuse(header_of(["s", [1, 0], 0, 2]), payload)


def test_fields_that_a_later_release_adds_are_passed_over() -> None:
    newer = {"nonce": 5, "colour": "blue"}
    frame = Frame(FrameKind.PING, 0, msgspec.msgpack.encode(newer), b"")
    assert from_frame(frame) == PingBody(nonce=5)


def test_what_an_earlier_release_leaves_out_has_its_old_meaning() -> None:
    def read(kind: FrameKind, **fields: object) -> Body:
        return from_frame(Frame(kind, 0, msgspec.msgpack.encode(fields), b""))

    opening = read(FrameKind.OPEN, ticket="t", max_positions=9)
    assert opening == OpenBody(ticket="t", max_positions=9, kept=())
    opened = read(FrameKind.OPENED, session_id="s", epoch=EPOCH, held=(1,), credits=8)
    assert opened == OpenedBody(session_id="s", epoch=EPOCH, held=(1,), credits=8, kept=())
    drawing = read(
        FrameKind.OPEN,
        ticket="t",
        max_positions=9,
        sampling={"temperature": 0.5, "top_p": 0.9, "seed": 1},
    )
    plain = Sampling(temperature=0.5, top_p=0.9, seed=1)
    assert drawing == OpenBody(ticket="t", max_positions=9, sampling=plain, history=None)
    told = read(FrameKind.TOKENS, tokens=[["s", EPOCH, 7, 42]])
    assert told == TokensBody(tokens=(ChosenToken("s", EPOCH, 7, 42, None),))
    progress = read(FrameKind.PROGRESS, session_id="s", epoch=EPOCH, position=1)
    assert progress == ProgressBody(session_id="s", epoch=EPOCH, position=1, waits=False)
    pong = read(FrameKind.PONG, nonce=5, oldest_step_seconds=1.0)
    assert pong == PongBody(nonce=5, oldest_step_seconds=1.0, overdue_seconds=0.0)
    short = activations_frame(header_of(["s", [1, 0], 0, 1, SEGMENT_FILL]), bytes(2))
    body = from_frame(short)
    assert isinstance(body, ActivationFrame)
    assert body.header.segments[0].last_hop is None


LONG_ID = "s" * (MAX_ID_CHARS + 1)
LONG_NAMES: tuple[Body, ...] = (
    activations(segment(session_id=LONG_ID)),
    TokensBody(tokens=(ChosenToken(LONG_ID, EPOCH, 7, 42),)),
    OpenedBody(session_id=LONG_ID, epoch=EPOCH, held=(), credits=8),
    CloseBody(session_id=LONG_ID, epoch=EPOCH),
    ErrorBody(session_id=LONG_ID, code="c", message="m", worker_id="w"),
    ErrorBody(session_id="s1", code="c", message="m", worker_id=LONG_ID),
    ProgressBody(session_id=LONG_ID, epoch=EPOCH, position=1),
    ReplayBody(session_id=LONG_ID, epoch=EPOCH, start=0, tokens=1, last_hop=1),
)


@pytest.mark.parametrize("body", LONG_NAMES, ids=lambda body: type(body).__name__)
def test_a_session_or_worker_with_a_name_that_nobody_gives_is_refused(body: Body) -> None:
    with pytest.raises(ProtocolError):
        from_frame(to_frame(body))


def test_a_session_id_may_be_twice_as_long_as_the_trackers() -> None:
    body = CloseBody(session_id="s" * MAX_ID_CHARS, epoch=EPOCH)
    assert from_frame(to_frame(body)) == body
