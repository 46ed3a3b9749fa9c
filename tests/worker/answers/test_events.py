import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.openai import errors
from meshnet_common.openai.sse import DONE_EVENT
from meshnet_common.protocol.notes import Failure
from meshnet_common.protocol.resume import HeadStream
from meshnet_worker.answers import events
from meshnet_worker.answers.asking import writer_of
from meshnet_worker.answers.events import (
    StreamEvents,
    WholeEvents,
    noted_failure,
    without_notes,
)
from tests.worker.answers.joining import chunks_of, joined, read, response_choice
from tests.worker.answers.scripts import Script, delivered, end_id, ids_of

SAID = "Gr日語 👩 of the the  end\n😀"
# Each of them keeps text back; some are found, some only nearly, some at the very end.
APIS = ("chat", "completions", "responses")
STOPS = ((), ("never",), (" end\n😀!",), ("the  e", "zzz"), ("語",), ("😀",))


def scripts(stream: bool | None = None, api: str | None = None) -> st.SearchStrategy[Script]:
    apis = st.sampled_from(APIS) if api is None else st.just(api)
    streams = st.booleans() if stream is None else st.just(stream)
    return st.builds(
        _script,
        apis,
        st.sampled_from(("bytes", "pieces")),
        st.sampled_from(STOPS),
        st.sampled_from(("length", "model", "early")),
        st.tuples(streams, st.booleans(), st.booleans()),
        st.lists(st.integers(1, len(ids_of("bytes", SAID))), max_size=3),
    )


def _script(
    api: str,
    kind: str,
    stop: Sequence[str],
    end: str,
    wishes: tuple[bool, bool, bool],
    cuts: Sequence[int],
) -> Script:
    """`cuts` are where other choices end, perhaps inside a character."""
    stream, include_usage, logprobs = wishes
    if api == "responses":
        # They have one choice, and tell no logprobs.
        logprobs, cuts = False, ()
    ids = ids_of(kind, SAID)
    ends = frozenset({end_id(kind)})
    if end == "model":
        ids = [*ids, end_id(kind)]
    if end == "early":
        # The first end comes too early to count.
        ids = [end_id(kind), *ids, end_id(kind), *ids]
    return Script(
        ids,
        kind=kind,
        stop=tuple(stop),
        stream=stream,
        include_usage=include_usage and stream,
        logprobs=logprobs,
        min_tokens=5 if end == "early" else 0,
        end_ids=ends if end != "length" else frozenset(),
        others=tuple(ids[:cut] for cut in cuts),
        api=api,
        echo="Hi there 日" if api == "completions" and not logprobs else "",
    )


def is_told(script: Script, got: bytes) -> bool:
    """Whether a Tracker needs no Head Worker any more."""
    return got.endswith(DONE_EVENT) or (not script.stream and got != b"")


@given(scripts(), st.data())
def test_an_answer_cut_anywhere_goes_on_with_exactly_what_is_missing(
    script: Script, data: st.DataObject
) -> None:
    whole = script.told()
    uncut, _ = delivered(whole)
    got, before = b"", None
    for _ in range(data.draw(st.integers(1, 3), label="losses")):
        stream = script.told(before)
        cut = data.draw(st.integers(0, len(stream)), label="cut")
        part, reader = delivered(stream[:cut], before)
        got, before = got + part, reader.record
        if is_told(script, got):
            break
    else:
        got += delivered(script.told(before), before)[0]
    if script.others and script.stream:
        # Another Head Worker takes the choices in another turn.
        assert joined(got) == joined(uncut)
    else:
        assert got.removesuffix(DONE_EVENT) == uncut.removesuffix(DONE_EVENT)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("logprobs", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_cut_at_any_byte_goes_on_with_exactly_what_is_missing(
    stream: bool, logprobs: bool, api: str
) -> None:
    logprobs = logprobs and api != "responses"
    script = Script(
        ids_of("bytes", "日本 wait 😀"),
        stop=("wait 😀!",),
        stream=stream,
        include_usage=stream,
        logprobs=logprobs,
        api=api,
        echo="" if logprobs or api != "completions" else "Hi",
    )
    whole = script.told()
    uncut, _ = delivered(whole)
    # Each line once: what is cut inside of one is as if it had not come.
    edges = [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")]
    for cut in [0, 1, *edges, *(edge - 1 for edge in edges)]:
        got, reader = delivered(whole[:cut])
        if reader.record is None:
            assert got == b""
        elif not is_told(script, got):
            got += delivered(script.told(reader.record), reader.record)[0]
            assert got.removesuffix(DONE_EVENT) == uncut.removesuffix(DONE_EVENT)


@given(scripts(stream=True))
def test_a_stream_says_what_a_whole_answer_says(script: Script) -> None:
    streamed, _ = delivered(script.told())
    as_whole = Script(**{**script.__dict__, "stream": False, "include_usage": False})
    (body,) = chunks_of(delivered(as_whole.told())[0])
    if script.api == "responses":
        assert joined(streamed) == [response_choice(body)]
        assert chunks_of(streamed)[-1]["response"] == body
        return
    told = [
        dict(zip(("text", "tokens", "finish_reason"), read(choice), strict=True))
        for choice in body["choices"]
    ]
    assert joined(streamed) == told
    if script.include_usage:
        assert chunks_of(streamed)[-1]["usage"] == body["usage"]


@given(scripts(stream=True, api="completions"))
def test_every_token_of_a_completion_begins_where_it_says(script: Script) -> None:
    for choice in joined(delivered(script.told())[0]):
        for token, _logprob, _top, offset in choice["tokens"]:
            assert choice["text"][offset:].startswith(token)
        offsets = [offset for *_, offset in choice["tokens"]]
        assert offsets == sorted(offsets)
        assert not script.logprobs or "".join(t for t, *_ in choice["tokens"]) == choice["text"]


@given(scripts(stream=True, api="chat"))
def test_the_tokens_of_each_chunk_join_to_its_text(script: Script) -> None:
    for chunk in chunks_of(delivered(script.told())[0]):
        for choice in chunk["choices"]:
            if choice["logprobs"] is not None:
                told = choice["logprobs"]["content"]
                assert "".join(token["token"] for token in told) == choice["delta"]["content"]


@given(scripts(stream=True, api="chat"))
def test_the_bytes_of_all_tokens_join_to_the_text(script: Script) -> None:
    for choice in joined(delivered(script.told())[0]):
        own_bytes = bytes(value for token in choice["tokens"] for value in token["bytes"])
        # What was cut off inside a character has bytes, and no text.
        said = own_bytes.decode(errors="ignore")
        assert said == (choice["text"] if script.logprobs else "")


@given(scripts(stream=True, api="chat"))
def test_the_roles_of_all_choices_come_first_and_each_finish_once(script: Script) -> None:
    chunks = [chunk for chunk in chunks_of(delivered(script.told())[0]) if chunk["choices"]]
    number = 1 + len(script.others)
    roles = [chunk["choices"][0] for chunk in chunks[:number]]
    assert [(role["index"], role["delta"].get("role")) for role in roles] == [
        (index, "assistant") for index in range(number)
    ]
    assert not any("role" in chunk["choices"][0]["delta"] for chunk in chunks[number:])
    finished = [c["choices"][0] for c in chunks if c["choices"][0]["finish_reason"] is not None]
    assert sorted(choice["index"] for choice in finished) == list(range(number))
    assert all(choice["delta"] == {} for choice in finished)


def test_a_choice_ends_when_it_does_and_not_with_the_others() -> None:
    script = Script(ids_of("bytes", "of the end"), others=(ids_of("bytes", "of"),))
    chunks = chunks_of(delivered(script.told())[0])
    ended = [c["choices"][0]["index"] for c in chunks if c["choices"][0]["finish_reason"]]
    assert ended == [1, 0]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_a_client_reads_what_a_tracker_passes_on() -> None:
    script = Script(ids_of("bytes", SAID), stop=(" end\n😀!",), include_usage=True)
    answer = script.answer()
    events = StreamEvents(answer, writer_of(answer), without_notes)
    pieces = [events.token(*drawn) for drawn in script.drawn(answer)]
    plain = b"".join((*pieces, *events.ending(), DONE_EVENT))
    assert plain == delivered(script.told())[0]
    assert [choice["text"] for choice in joined(plain)] == [SAID]


def test_a_whole_answer_is_one_event() -> None:
    data, reader = delivered(Script(ids_of("bytes", SAID), stream=False).told())
    event, done, _ = data.split(b"\n\n")
    answer = json.loads(event.removeprefix(b"data: "))
    assert answer["choices"][0]["message"]["content"] == SAID
    assert answer["usage"]["completion_tokens"] == len(ids_of("bytes", SAID))
    assert done == b"data: [DONE]"
    assert reader.record is not None
    assert reader.record.choices[0].token_ids == tuple(ids_of("bytes", SAID))


@pytest.mark.parametrize("stream", [True, False])
def test_a_tracker_learns_what_an_answer_has_cost(stream: bool) -> None:
    script = Script(ids_of("bytes", "the end"), stream=stream, others=(ids_of("bytes", "of"),))
    said = len(script.token_ids) + len(script.others[0])
    told = [block.usage for block in HeadStream().feed(script.told()) if block.usage]
    assert told == [(3, 0), (3, said)]


def test_a_stream_keeps_of_its_tokens_only_what_is_not_told() -> None:
    script = Script(ids_of("bytes", SAID), stop=("the  e!",), logprobs=True)
    reader, most = HeadStream(), 0
    for block in reader.feed(script.told()):
        reader.delivered(block)
        if reader.record is not None:
            most = max(most, len(reader.record.choices[0].logprobs))
    assert reader.record is not None
    assert reader.record.choices[0].logprobs == ()
    assert 0 < most < len(script.token_ids)


def test_a_failure_is_told_with_its_status_and_behind_its_cost() -> None:
    error = errors.overloaded("Full.", 5)
    first, last = HeadStream().feed(noted_failure(error))
    assert (first.failure, first.payload) == (Failure(503, "5"), error.to_json())
    assert last.ends_stream
    cost, failure, _ = HeadStream().feed(noted_failure(error, Script([1]).answer()))
    assert cost.usage == (3, 0)
    assert failure == first


@pytest.mark.parametrize("api", APIS)
def test_a_whole_answer_that_no_block_can_hold_is_refused(
    api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = Script(ids_of("bytes", SAID), stream=False, api=api).answer()
    whole = WholeEvents(answer, writer_of(answer))
    size = len(whole.whole()) + len(b"data: \n\n")
    monkeypatch.setattr(events, "MAX_BLOCK_BYTES", size)
    assert whole.whole()
    monkeypatch.setattr(events, "MAX_BLOCK_BYTES", size - 1)
    with pytest.raises(errors.ApiError, match="Ask for a stream") as refused:
        whole.whole()
    assert refused.value.status == 400
