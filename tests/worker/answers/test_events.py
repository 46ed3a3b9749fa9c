import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.openai import errors
from meshnet_common.openai.sse import DONE_EVENT
from meshnet_common.protocol.notes import Failure
from meshnet_common.protocol.resume import HeadStream
from meshnet_worker.answers.events import StreamEvents, noted_failure, without_note
from tests.worker.answers.scripts import Script, delivered, end_id, ids_of

SAID = "Gr日語 👩 of the the  end\n😀"
# Each of them keeps text back; some are found, some only nearly, some at the very end.
STOPS = ((), ("never",), (" end\n😀!",), ("the  e", "zzz"), ("語",), ("😀",))


def scripts() -> st.SearchStrategy[Script]:
    return st.builds(
        _script,
        st.sampled_from(("bytes", "pieces")),
        st.sampled_from(STOPS),
        st.sampled_from(("length", "model", "early")),
        st.tuples(st.booleans(), st.booleans()),
    )


def _script(kind: str, stop: Sequence[str], end: str, wishes: tuple[bool, bool]) -> Script:
    stream, include_usage = wishes
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
        min_tokens=5 if end == "early" else 0,
        end_ids=ends if end != "length" else frozenset(),
    )


def text_of(data: bytes) -> str:
    chunks = [json.loads(event[6:]) for event in data.split(b"\n\n")[:-2]]
    texts = (chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    return "".join(texts)


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
    assert got.removesuffix(DONE_EVENT) == uncut.removesuffix(DONE_EVENT)


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_cut_at_any_byte_goes_on_with_exactly_what_is_missing(stream: bool) -> None:
    script = Script(
        ids_of("bytes", "日本 wait 😀"), stop=("wait 😀!",), stream=stream, include_usage=stream
    )
    whole = script.told()
    uncut, _ = delivered(whole)
    for cut in range(len(whole)):
        got, reader = delivered(whole[:cut])
        if reader.record is None:
            assert got == b""
        elif not is_told(script, got):
            got += delivered(script.told(reader.record), reader.record)[0]
            assert got == uncut


def test_a_client_reads_what_a_tracker_passes_on() -> None:
    script = Script(ids_of("bytes", SAID), stop=(" end\n😀!",), include_usage=True)
    answer = script.answer()
    events = StreamEvents(answer, without_note)
    pieces = []
    for token_id in script.token_ids:
        answer.generation.chosen.append(token_id)
        pieces.append(events.token(token_id))
    plain = b"".join((*pieces, *events.ending()))
    assert plain == delivered(script.told())[0]
    assert text_of(plain.replace(b'"choices":[]', b'"choices":[{"delta":{}}]')) == SAID


def test_a_whole_answer_is_one_event() -> None:
    data, reader = delivered(Script(ids_of("bytes", SAID), stream=False).told())
    event, done, _ = data.split(b"\n\n")
    answer = json.loads(event.removeprefix(b"data: "))
    assert answer["choices"][0]["message"]["content"] == SAID
    assert answer["usage"]["completion_tokens"] == len(ids_of("bytes", SAID))
    assert done == b"data: [DONE]"
    assert reader.record is not None
    assert reader.record.choices[0].token_ids == tuple(ids_of("bytes", SAID))


def test_a_failure_is_told_with_its_status() -> None:
    error = errors.overloaded("Full.", 5)
    first, last = HeadStream().feed(noted_failure(error))
    assert (first.failure, first.payload) == (Failure(503, "5"), error.to_json())
    assert last.ends_stream
