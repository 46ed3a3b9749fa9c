"""Edges of the public API over the wire: what other servers got wrong must be right here.

One small Mesh, whose model spells most characters in several tokens and whose memory holds a few
answers at once, so that others wait.
"""

import json
import random
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from demo.local_mesh import LocalMesh
from demo.processes import Program
from tests.mesh.harness import Reply, chat_body, get, kv_report, post, start_tight_workers
from tests.mesh.hostile_bodies import HUGE, REFUSED
from tests.mesh.official_shapes import ERROR_KEYS, choices_of_stream, choices_of_whole
from tests.mesh.spelling_model import CONTEXT_TOKENS, MODEL, save_spelling_model

KV_BYTES = 2 << 20
"""A handful of the longest answers at once."""
LARGEST_ERROR_BYTES = 2200
"""Of messages of 500 characters."""
AT_ONCE = 25
EXAMPLES = 20
CLIENTS = 20
OTHERS = 2
OTHER_MODEL = "other"
FREED_SECONDS = 2.0
POLL_SECONDS = 0.05
TOP_LOGPROBS = 5
LEAST_LOGPROB = -9999.0
"""What stands for the logarithm of nothing, which JSON cannot say."""
SEEN_SECONDS = 30.0
STOPS = ("the", "😀", "日é", "a b", "é", " the\n", "😁😂", "ab", "never")
LONGEST_TOKEN = len(" the")


@dataclass
class EdgeMesh:
    """A Mesh, its Workers, and where to chat."""

    mesh: LocalMesh
    workers: list[Program]

    @property
    def url(self) -> str:
        return f"{self.mesh.tracker_url}/v1/chat/completions"

    def ask(self, content: str = "a", **fields: Any) -> Reply:
        return post(self.url, chat_body(MODEL, content, **{"max_tokens": 5, **fields}))

    def is_free(self) -> bool:
        """Nobody works or waits, on any Hop."""
        reports = [kv_report(worker) for worker in self.workers]
        used = sum(pool.used for report in reports for pool in report.pools)
        return not used and not any(report.sessions or report.waiting for report in reports)

    def has_waiting(self) -> bool:
        return any(kv_report(worker).waiting for worker in self.workers)


@pytest.fixture(scope="module")
def edge(new_mesh: Callable[[], LocalMesh], tmp_path_factory: pytest.TempPathFactory) -> EdgeMesh:
    folder = save_spelling_model(tmp_path_factory.mktemp("models") / "spelling")
    mesh = new_mesh()
    mesh.add_preset(folder, MODEL, "--quantization", "float32")
    # An error that is due at once has its own status, however busy this machine is.
    mesh.start_tracker("--headroom-bytes", str(KV_BYTES), "--ack-after-ms", "30000")
    workers = start_tight_workers(mesh, MODEL, 2, KV_BYTES)
    assert len(mesh.route(MODEL).hops) == 2
    return EdgeMesh(mesh, workers)


@pytest.fixture
def sound(edge: EdgeMesh) -> Iterator[EdgeMesh]:
    """The same, which must have taken no harm afterwards."""
    yield edge
    assert edge.ask().status == 200
    edge.mesh.programs.wait_for(edge.is_free, SEEN_SECONDS, "nothing is left behind")


def error_of(reply: Reply) -> dict[str, Any]:
    """The error of an answer, in the one shape of all errors."""
    assert reply.headers["Content-Type"] == "application/json"
    assert reply.headers["x-request-id"].startswith("req_")
    assert len(reply.body) < LARGEST_ERROR_BYTES
    assert json.loads(reply.body).keys() == {"error"}
    assert reply.error.keys() >= ERROR_KEYS
    assert isinstance(reply.error["message"], str)
    assert isinstance(reply.error["code"], str | None)
    return reply.error


WISHES = st.fixed_dictionaries(
    {
        "n": st.sampled_from((1, 1, 2, 3)),
        "temperature": st.sampled_from((0.7, 1.0, 1.5)),
        "seed": st.integers(-(2**63), 2**63 - 1),
        "max_tokens": st.integers(1, 12),
    },
    optional={
        "stop": st.lists(st.sampled_from(STOPS), max_size=4),
        "logprobs": st.just(True),
        "frequency_penalty": st.sampled_from((-2, 0.5, 2)),
        "logit_bias": st.just({"1": 2, "2": -100}),
        "min_tokens": st.just(1),
        "ignore_eos": st.just(True),
        "stream_options": st.just({"include_usage": True}),
    },
)


@settings(
    max_examples=EXAMPLES,
    # Each of them is many requests; to ask again for fewer would take as long every time.
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(WISHES, min_size=AT_ONCE, max_size=AT_ONCE))
def test_a_stream_says_what_a_whole_answer_says(
    edge: EdgeMesh, wishes: list[dict[str, Any]]
) -> None:
    with ThreadPoolExecutor(AT_ONCE) as clients:
        for differs in clients.map(partial(difference, edge), wishes):
            assert differs is None


def stops_behind(text: str, stop: str, least_tokens: int) -> bool:
    """Whether a stop string is whole only behind the least tokens, where it ends an answer."""
    most_characters = least_tokens * LONGEST_TOKEN
    return text.find(stop, max(0, most_characters - len(stop) + 1)) >= 0


def difference(edge: EdgeMesh, wishes: dict[str, Any]) -> str | None:
    """Ask both ways; say what is different, if anything is."""
    tells_usage, top = "stream_options" in wishes, TOP_LOGPROBS if "logprobs" in wishes else None
    wishes = {**wishes, "top_logprobs": top}
    plain = {key: wish for key, wish in wishes.items() if key != "stream_options"}
    whole, stream = edge.ask(**plain), edge.ask(**wishes, stream=True)
    assert (whole.status, stream.status) == (200, 200), (whole.body, stream.body)
    least = wishes.get("min_tokens", 0)
    choices, usage = choices_of_whole(whole.body)
    streamed, told = choices_of_stream(stream.body, wishes["n"], tells_usage=tells_usage)
    for choice in choices:
        assert "\ufffd" not in choice.text
        assert not any(stops_behind(choice.text, stop, least) for stop in wishes.get("stop", ()))
        assert choice.finish_reason in {"stop", "length"}
        likely = [one for token in choice.tokens for one in token["top_logprobs"]]
        assert len(likely) == len(choice.tokens) * (top or 0)
        assert all(one["logprob"] >= LEAST_LOGPROB for one in (*choice.tokens, *likely))
        own_bytes = bytes(value for token in choice.tokens for value in token["bytes"])
        assert own_bytes.decode(errors="ignore") == (choice.text if "logprobs" in wishes else "")
    assert usage["prompt_tokens"] == 1
    assert usage["completion_tokens"] <= wishes["n"] * wishes["max_tokens"]
    assert usage["total_tokens"] == 1 + usage["completion_tokens"]
    same = choices == streamed and (told is None or told == usage)
    return None if same else f"{wishes}: {choices} {usage} is not {streamed} {told}"


def test_a_client_that_leaves_at_any_point_frees_everything(sound: EdgeMesh) -> None:
    chance, is_full = random.Random(7), threading.Event()
    with ThreadPoolExecutor(CLIENTS) as clients:
        points = [chance.random() for _ in range(CLIENTS)]
        leaving = [clients.submit(leave, sound, point, is_full) for point in points]
        try:
            sound.mesh.programs.wait_for(sound.has_waiting, SEEN_SECONDS, "somebody waits")
        finally:
            is_full.set()
        for client in leaving:
            client.result()
    left_at = time.monotonic()
    sound.mesh.programs.wait_for(sound.is_free, SEEN_SECONDS, "nobody works for them any more")
    assert time.monotonic() - left_at < FREED_SECONDS
    assert b"\nmeshnet_tracker_held_requests 0.0\n" in get(f"{sound.mesh.tracker_url}/metrics").body


def leave(edge: EdgeMesh, point: float, is_full: threading.Event) -> None:
    """Ask in one of several ways, and hang up after a while: `point` says how, and when."""
    chance = random.Random(point)
    wishes: dict[str, Any] = {
        "max_tokens": 300,
        "ignore_eos": True,
        "stream": chance.random() < 0.7,
        "n": chance.choice((1, 1, 2)),
        "temperature": 1,
    }
    body = json.dumps(chat_body(MODEL, "a" * chance.randint(50, 200), **wishes)).encode()
    address = urlsplit(edge.mesh.tracker_url)
    with socket.create_connection((address.hostname, address.port), POLL_SECONDS) as client:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        client.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        # A quarter leaves early, the others at some time after the memory is full.
        if point >= 0.25:
            _read_until(client, is_full.is_set)
        leaves_at = time.monotonic() + 2 * point
        _read_until(client, lambda: time.monotonic() > leaves_at)


def _read_until(client: socket.socket, is_over: Callable[[], bool]) -> None:
    while not is_over():
        with suppress(TimeoutError):
            assert client.recv(4096), "only a client may end this"


def test_what_breaks_a_rule_is_a_short_400_that_names_its_field(sound: EdgeMesh) -> None:
    for what, (body, param) in REFUSED.items():
        reply = post(sound.url, body)
        assert reply.status == (404 if what == "zeros" else 400), (what, reply.body)
        assert error_of(reply)["param"] == param, (what, reply.body)
        assert reply.error["type"] == "invalid_request_error"


def test_a_lone_surrogate_is_no_character_wherever_it_stands(sound: EdgeMesh) -> None:
    good = json.dumps(
        chat_body(MODEL, "a", max_tokens=2, stop=["z"], user="u", metadata={"k": ["v"]})
    )
    for place in ('"user": "', '"k": ["', '"stop": ["', '"role": "', '"content": "', '"'):
        for escape in (r"\ud800", r"\udfff", r"\ud800\ud800"):
            reply = post(sound.url, good.replace(place, place + escape, 1).encode())
            assert (reply.status, error_of(reply)["code"]) == (400, "invalid_unicode"), place
    assert post(sound.url, good.replace('"u"', r'"😀\ud83d\ude00"').encode()).status == 200


def test_every_url_and_method_has_errors_of_one_shape(sound: EdgeMesh) -> None:
    root = sound.mesh.tracker_url
    for url in ("/v1/chat", "/v1/models/no/such", "/", "/v1/%2e%2e/admin", f"/{HUGE[:5000]}"):
        assert (get(f"{root}{url}").status, error_of(get(f"{root}{url}"))["code"]) in {
            (404, None),
            (404, "model_not_found"),
        }
    wrong_method = get(sound.url)
    assert (wrong_method.status, wrong_method.headers["Allow"]) == (405, "POST")
    error_of(wrong_method)
    too_large = post(sound.url, b" " * ((4 << 20) + 1))
    assert (too_large.status, error_of(too_large)["code"]) == (413, "request_too_large")
    other_media = post(sound.url, b"{}", "text/plain")
    assert other_media.status == 415
    error_of(other_media)


@pytest.mark.parametrize("stream", [True, False])
def test_a_prompt_that_is_too_long_is_a_400_before_any_stream(
    sound: EdgeMesh, stream: bool
) -> None:
    reply = sound.ask("a" * CONTEXT_TOKENS, stream=stream)
    assert (reply.status, error_of(reply)["code"]) == (400, "context_length_exceeded")
    assert (reply.error["n_prompt_tokens"], reply.error["n_ctx"]) == (CONTEXT_TOKENS,) * 2


def test_a_turn_that_was_left_in_the_middle_changes_nothing_for_the_next(sound: EdgeMesh) -> None:
    turns = [{"role": "user", "content": "ab"}]
    third = [*turns, {"role": "assistant", "content": "the"}, {"role": "user", "content": "é😀"}]
    wishes: dict[str, Any] = {"max_tokens": 20, "ignore_eos": True, "temperature": 1, "seed": 3}
    alone, _ = choices_of_whole(sound.ask(messages=third, **wishes).body)
    body = chat_body(MODEL, "a", messages=turns, **{**wishes, "max_tokens": 300}, stream=True)
    request = urllib.request.Request(
        sound.url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    for _ in range(3):
        with urllib.request.urlopen(request, timeout=SEEN_SECONDS) as second:
            assert second.readline().startswith((b"data:", b":"))
        told, _ = choices_of_whole(sound.ask(messages=third, **wishes).body)
        assert told == alone


def test_a_request_for_another_model_lets_the_answers_of_this_one_finish(sound: EdgeMesh) -> None:
    wishes: dict[str, Any] = {"max_tokens": 120, "ignore_eos": True, "seed": 7, "temperature": 1}
    alone, _ = choices_of_whole(sound.ask(**wishes).body)
    # There is room for one of the two only.
    source = Path(sound.mesh.preset(MODEL).source)
    sound.mesh.add_preset(source, OTHER_MODEL, "--quantization", "float32")
    with ThreadPoolExecutor(2 * OTHERS) as clients:
        try:
            streams = [clients.submit(sound.ask, **wishes, stream=True) for _ in range(OTHERS)]
            sound.mesh.programs.wait_for(lambda: not sound.is_free(), SEEN_SECONDS, "they begin")
            body = chat_body(OTHER_MODEL, "a", max_tokens=5)
            others = [clients.submit(post, sound.url, body) for _ in range(OTHERS)]
            for stream in streams:
                told, _ = choices_of_stream(stream.result().body, 1, tells_usage=False)
                assert told == alone
        finally:
            # Whoever still waits for it need not any longer.
            sound.mesh.remove_preset(OTHER_MODEL)
        assert all(other.result().status in {200, 404, 502, 503} for other in others)
    sound.mesh.wait_until_served(MODEL)
