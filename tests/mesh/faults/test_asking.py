"""What a client forgives is wrong here: each answer is read byte for byte."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from tests.mesh.faults.asking import Answered, Ask, Asking, Broken, Outcome, Refused

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
ERROR = {"message": "Missing Layers: [2, 4).", "type": "server_error", "param": None, "code": "x"}
DONE = "data: [DONE]"


def chunk(**delta: str) -> str:
    return _data([{"delta": delta, "finish_reason": None}])


def _data(choices: list[dict[str, Any]], **fields: Any) -> str:
    return f"data: {json.dumps({'id': 'a', 'created': 1, 'choices': choices, **fields})}"


ROLE = chunk(role="assistant", content="")
END = _data([{"delta": {}, "finish_reason": "length"}])
TOLD_USAGE = _data([], usage=USAGE)
WHOLE = [ROLE, chunk(content="w1"), chunk(content=" w2"), END, TOLD_USAGE, DONE]


def _ask(*lines: str) -> Outcome:
    body = "".join(f"{line}\n\n" for line in lines).encode()
    with _server(body) as url:
        return Asking(url, Ask(3, 2)).start().result(10.0)


@contextmanager
def _server(body: bytes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_stream_that_is_whole_is_an_answer() -> None:
    assert _ask(*WHOLE) == Answered("w1 w2", "length", (3, 2, 5))


def test_a_keep_alive_comment_is_no_part_of_it() -> None:
    assert _ask(ROLE, ": keep-alive", *WHOLE[1:]) == _ask(*WHOLE)


def test_an_acknowledgement_and_places_before_it_are_no_part_of_it() -> None:
    waiting = (": accepted; queued position 2", ": keep-alive", ": queued position 0")
    assert _ask(*waiting, *WHOLE) == _ask(*WHOLE)


@pytest.mark.parametrize(
    "lines",
    [
        [": accepted; queued position 0", ": accepted; queued position 0", *WHOLE],
        [": queued position 0", *WHOLE],
        [": accepted", *WHOLE],
        [ROLE, ": accepted; queued position 0", *WHOLE[1:]],
        [": accepted; queued position 1", ROLE, ": queued position 0", *WHOLE[1:]],
    ],
    ids=["twice", "a place alone", "without a place", "too late", "a place too late"],
)
def test_an_acknowledgement_in_the_wrong_place_is_wrong(lines: list[str]) -> None:
    assert isinstance(_ask(*lines), Broken)


def test_an_error_event_ends_it_well_formed() -> None:
    outcome = _ask(*WHOLE[:2], f"data: {json.dumps({'error': ERROR})}", DONE)
    assert outcome == Refused(200, "x", "Missing Layers: [2, 4).")


@pytest.mark.parametrize(
    "lines",
    [
        WHOLE[:-1],
        WHOLE[1:],
        [*WHOLE[:3], TOLD_USAGE, DONE],
        [*WHOLE[:4], DONE],
        [ROLE, *WHOLE],
        [*WHOLE[:4], *WHOLE[2:]],
        [*WHOLE, DONE],
        [*WHOLE[:5], *WHOLE[4:]],
        [ROLE, ": token-ids 1", *WHOLE[1:]],
        [ROLE, WHOLE[1].replace('"a"', '"b"'), *WHOLE[2:]],
        [*WHOLE[:2], f"data: {json.dumps({'error': {'message': 'no'}})}", DONE],
    ],
    ids=[
        "no end",
        "no role",
        "no finish reason",
        "no usage",
        "a second role",
        "text after the end",
        "a second end",
        "usage twice",
        "a comment of the Mesh's own",
        "another answer's id",
        "an error that is none of this API's",
    ],
)
def test_anything_else_is_broken(lines: list[str]) -> None:
    assert isinstance(_ask(*lines), Broken)
