from contextlib import suppress
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.openai.sse import DONE_EVENT, data_event, noted_event
from meshnet_common.protocol.notes import (
    ALIVE_NOTE,
    BLAMED_NOTE,
    FELLED_NOTE,
    MOVED_NOTE,
    Failure,
    HeadStreamError,
    Sent,
    alive_note,
    answer_note,
    choice_note,
    failed_note,
    held_note,
    logprobs_note,
    sent_note,
    token_ids_note,
    usage_note,
)
from meshnet_common.protocol.resume import (
    MAX_RECORD_BYTES,
    Block,
    ChoiceRecord,
    HeadStream,
    ResumeRecord,
    ResumeRequest,
    encode_resume,
    most_tokens_told_at_once,
)
from meshnet_common.protocol.sampling import TokenLogprobs

STREAM = b"".join(
    [
        noted_event([answer_note("chatcmpl-1", 1_700_000_000)]),
        noted_event([ALIVE_NOTE]),
        noted_event([sent_note(Sent.ROLE)], b'{"role": 1}'),
        noted_event([token_ids_note([5, 7])]),
        noted_event([token_ids_note([9])], '{"text": "Hé 😀\\n\\n"}'.encode()),
        noted_event([sent_note(Sent.REST)], b"{}"),
        noted_event([sent_note(Sent.FINISH)], b"{}"),
        DONE_EVENT,
    ]
)


def read(stream: bytes, cuts: list[int] | None = None) -> tuple[HeadStream, list[Block]]:
    reader = HeadStream()
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts or ()), len(stream)]
    blocks = []
    for start, end in pairwise(edges):
        for block in reader.feed(stream[start:end]):
            reader.delivered(block)
            blocks.append(block)
    return reader, blocks


def record(*token_ids: int, sent: tuple[Sent, ...] = ()) -> ResumeRecord:
    choice = ChoiceRecord(token_ids=token_ids, sent=sent)
    return ResumeRecord(id="chatcmpl-1", created=1_700_000_000, choices=(choice,))


@given(st.lists(st.integers(0, len(STREAM))))
def test_the_blocks_of_a_stream_are_the_same_however_it_is_cut(cuts: list[int]) -> None:
    reader, blocks = read(STREAM, cuts)
    assert blocks == read(STREAM)[1]
    assert reader.record == record(5, 7, 9, sent=(Sent.ROLE, Sent.REST, Sent.FINISH))


def test_a_block_has_the_clients_data_without_the_notes() -> None:
    _, blocks = read(STREAM)
    payloads = [block.payload for block in blocks if block.payload is not None]
    assert b"".join(map(data_event, payloads)) == (
        b'data: {"role": 1}\n\n'
        + 'data: {"text": "Hé 😀\\n\\n"}\n\n'.encode()
        + b"data: {}\n\ndata: {}\n\ndata: [DONE]\n\n"
    )
    assert [block.ends_stream for block in blocks] == [False] * 7 + [True]


def test_the_record_grows_only_by_what_was_delivered() -> None:
    reader = HeadStream()
    records = [reader.record]
    for block in reader.feed(STREAM):
        reader.delivered(block)
        records.append(reader.record)
    assert records[:6] == [
        None,
        record(),
        record(),
        record(sent=(Sent.ROLE,)),
        record(5, 7, sent=(Sent.ROLE,)),
        record(5, 7, 9, sent=(Sent.ROLE,)),
    ]


def test_a_record_goes_on_in_the_next_head_workers_stream() -> None:
    before = record(5, sent=(Sent.ROLE,))
    reader = HeadStream(before)
    assert reader.record == before
    for block in reader.feed(noted_event([answer_note("other", 1)]) + STREAM):
        reader.delivered(block)
    assert reader.record == record(5, 5, 7, 9, sent=(Sent.ROLE, Sent.REST, Sent.FINISH))


def test_failures_and_moves_are_told() -> None:
    failed = noted_event([failed_note(503, "5")], b'{"error": {}}')
    _, (first, second, third) = read(
        failed + noted_event([failed_note(400, None)], b"{}") + (noted_event([MOVED_NOTE]))
    )
    assert (first.failure, first.payload) == (Failure(503, "5"), b'{"error": {}}')
    assert second.failure == Failure(400, None)
    assert third.is_moved
    assert not third.is_felled
    assert not third.is_blamed
    _, (blamed, felled) = read(
        noted_event([failed_note(502, None), BLAMED_NOTE], b"{}")
        + noted_event([MOVED_NOTE, FELLED_NOTE])
    )
    assert (blamed.failure, blamed.is_blamed) == (Failure(502, None), True)
    assert (felled.is_moved, felled.is_felled) == (True, True)


def test_unknown_notes_and_none_at_all_are_passed_over() -> None:
    _, blocks = read(b": keep-alive\ndata: {}\n\n:\n\n: na\xc3\xafve\n\n\n\ndata: {}\n\n")
    assert blocks == [Block((b"{}",)), Block(), Block(), Block(), Block((b"{}",))]


JUNK = {
    "another field": b"id: 1\n\n",
    "notes behind data": b"data: 1\n: alive\n\n",
    "carriage returns": b": alive\r\ndata: 1\r\n\n\n",
    "an answer without a time": b": answer chatcmpl-1\n\n",
    "a time that is none": b": answer chatcmpl-1 now\n\n",
    "a negative token": b": token-ids -1\n\n",
    "a token beyond all vocabularies": b": token-ids 99999999999\n\n",
    "a figure without end": b": token-ids " + b"1" * 5000 + b"\n\n",
    "what nobody sends": b": sent flowers\n\n",
    "an error that is none": b": failed 200\n\n",
    "an error without a status": b": failed\n\n",
    "a name without end": b": answer " + b"x" * 500 + b" 1\n\n",
}


@pytest.mark.parametrize("stream", JUNK.values(), ids=JUNK)
def test_junk_is_one_error(stream: bytes) -> None:
    with pytest.raises(HeadStreamError):
        read(stream)


@given(st.binary(max_size=200) | st.lists(st.sampled_from(STREAM.splitlines(True))).map(b"".join))
def test_whatever_comes_is_read_or_is_that_error(stream: bytes) -> None:
    with suppress(HeadStreamError):
        read(stream)


def test_a_block_is_never_held_beyond_its_limit() -> None:
    reader = HeadStream(max_block_bytes=100)
    assert list(reader.feed(b"data: " + b"x" * 90)) == []
    with pytest.raises(HeadStreamError, match="100"):
        list(reader.feed(b"x" * 10))


def test_a_block_that_comes_at_once_has_the_same_limit() -> None:
    with pytest.raises(HeadStreamError, match="100"):
        list(HeadStream(max_block_bytes=100).feed(b"data: " + b"x" * 100 + b"\n\n"))


def test_an_answer_without_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshnet_common.protocol.resume.MAX_RECORDED_TOKENS", 3)
    with pytest.raises(HeadStreamError, match="3"):
        read(noted_event([token_ids_note([1, 2])]) * 2)


def test_the_next_head_worker_gets_the_clients_body_as_it_came_and_the_record() -> None:
    body = b'{ "model":"tiny",\n "messages": [] }'
    resumed = msgspec.json.decode(encode_resume(body, record(1, 2)), type=ResumeRequest)
    assert (bytes(resumed.request), resumed.record) == (body, record(1, 2))


ONE, OTHER = TokenLogprobs(-0.5, ((7, -0.5),)), TokenLogprobs(-9999.0)


def test_every_choice_has_a_record_of_its_own() -> None:
    stream = b"".join(
        [
            noted_event([answer_note("chatcmpl-1", 1_700_000_000)]),
            noted_event([sent_note(Sent.ROLE)], b"{}"),
            noted_event([choice_note(2), sent_note(Sent.ROLE)], b"{}"),
            noted_event([choice_note(2), token_ids_note([5])], b"{}"),
            noted_event([token_ids_note([6])], b"{}"),
            noted_event([choice_note(2), sent_note(Sent.FINISH)], b"{}"),
        ]
    )
    reader, _ = read(stream)
    assert reader.record is not None
    assert reader.record.choice(0) == ChoiceRecord(token_ids=(6,), sent=(Sent.ROLE,))
    assert reader.record.choice(1) == ChoiceRecord(index=1)
    assert reader.record.choice(2) == ChoiceRecord(
        index=2, token_ids=(5,), sent=(Sent.ROLE, Sent.FINISH)
    )
    again = HeadStream(reader.record)
    assert again.record == reader.record


def test_log_probabilities_are_kept_for_as_long_as_the_client_lacks_them() -> None:
    reader = HeadStream()
    kept = []
    for block in reader.feed(
        noted_event([answer_note("a", 1)])
        + noted_event([token_ids_note([5]), logprobs_note([ONE])])
        + noted_event([token_ids_note([6]), logprobs_note([OTHER]), held_note(2)])
        + noted_event([token_ids_note([7]), logprobs_note([ONE]), held_note(1)], b"{}")
        + noted_event([sent_note(Sent.REST), held_note(0)], b"{}")
    ):
        reader.delivered(block)
        assert reader.record is not None
        kept.append(reader.record.choice(0).logprobs)
    assert kept == [(), (ONE,), (ONE, OTHER), (ONE,), ()]


def test_a_record_with_everything_comes_back_from_json() -> None:
    choices = (
        ChoiceRecord(token_ids=(1, 2), logprobs=(OTHER,), sent=(Sent.ROLE,)),
        ChoiceRecord(index=1, token_ids=(3,), logprobs=(ONE,)),
    )
    whole = ResumeRecord(id="a", created=1, choices=choices)
    assert msgspec.json.decode(encode_resume(b"{}", whole), type=ResumeRequest).record == whole


@pytest.mark.parametrize("others", [0, 1, 20])
def test_a_record_is_never_larger_than_a_head_worker_takes(others: int) -> None:
    longest, count = -1.2345678901234567e-308, 1000
    token_id = 2**31 - 1
    told = TokenLogprobs(longest, ((token_id, longest),) * others)
    choice = ChoiceRecord(token_ids=(token_id,) * count, logprobs=(told,) * count)
    record_of_all = ResumeRecord(id="a", created=1, choices=(choice,))
    bytes_each = (len(encode_resume(b"{}", record_of_all)) - 200) / count
    most = most_tokens_told_at_once(others)
    assert 0.9 * MAX_RECORD_BYTES < most * bytes_each <= MAX_RECORD_BYTES
    assert most > 20_000


def test_a_block_may_have_several_events() -> None:
    _, (block,) = read(noted_event([token_ids_note([1])], b'{"a": 1}', b'{"b": 2}'))
    assert block.payloads == (b'{"a": 1}', b'{"b": 2}')
    assert block.payload == b'{"b": 2}'


def test_what_an_answer_costs_and_how_many_wait_is_told() -> None:
    _, (waits, usage) = read(noted_event([alive_note(3)]) + noted_event([usage_note(12, 34)]))
    assert (waits.ahead, usage.usage, usage.payloads) == (3, (12, 34), ())


def test_more_log_probabilities_than_tokens_are_junk() -> None:
    with pytest.raises(HeadStreamError):
        read(noted_event([token_ids_note([1]), logprobs_note([ONE, OTHER])]))
