"""Trackers over one PostgreSQL: each takes any call, one plans, and any of them can be killed."""

import asyncio
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import jwt
import msgspec
import psutil
import pytest
from openai import OpenAI

from demo.local_mesh import LocalMesh, gaps
from demo.processes import Program, Programs, command
from meshnet_common.protocol.messages import RouteAnswer
from meshnet_common.protocol.tickets import RouteTicket
from tests.mesh.harness import (
    Reply,
    alive,
    chat_body,
    equal_budget,
    family,
    get,
    post,
)
from tests.mesh.small_models import prompt_of, text_of
from tests.postgres import PostgresServer

MODEL = "small"
PROMPT = text_of(prompt_of(20))
LONG_ANSWER_TOKENS = 450
AWAY_SECONDS = 20.0
TAKE_OVER_SECONDS = 10.0
PLANS = "this tracker plans"
LOST = "worker lost"
KNOW_BOTH = ("worker-1", "worker-2")
KNOWS_ONE = "worker-3"
LOSS_SECONDS = 60.0
"""For another Tracker to plan and be patient, and for a silent Worker to be lost then."""
OPTIONS = ("--heartbeat-seconds", "1", "--lost-after-seconds", "4")


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="module")
def mesh(
    tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer, random_gpt2: Path
) -> Iterator[LocalMesh]:
    """The first Tracker plans; Workers and most requests go to the second; Workers know a third."""
    url = postgres.url(asyncio.run(postgres.new_database()))
    folder = tmp_path_factory.mktemp("mesh")
    migrating = (command("meshnet-tracker"), "migrate", "--database-url", url)
    subprocess.run(migrating, check=True, capture_output=True)
    with Programs(folder) as programs:
        mesh = LocalMesh(folder, programs, url)
        mesh.add_preset(random_gpt2, MODEL, "--quantization", "float32")
        first = mesh.start_tracker(*OPTIONS, name="first")
        programs.wait_for(lambda: PLANS in first.log.read_text(), 10.0, "the first one plans")
        third = mesh.start_tracker(*OPTIONS, name="third")
        mesh.start_tracker(*OPTIONS, name="second")
        budget = equal_budget(mesh, MODEL, 2)
        for name in KNOW_BOTH:
            mesh.start_worker(name, budget, ("--tracker", third.url))
        mesh.wait_until_served(MODEL)
        yield mesh


def tracker(mesh: LocalMesh, name: str) -> Program:
    return next(program for program in mesh.programs.running if program.name == name)


def planning_one(trackers: list[Program]) -> Program | None:
    return next((one for one in trackers if PLANS in one.log.read_text()), None)


def ask(url: str, tokens: int = 8) -> Reply:
    return post(f"{url}/v1/chat/completions", chat_body(MODEL, PROMPT, max_tokens=tokens))


def workers(url: str) -> list[tuple[str, str, int]]:
    listed = json.loads(get(f"{url}/v1/workers").body)["workers"]
    return sorted((w["url"], w["state"], len(w["shards"])) for w in listed)


def admission_number(url: str) -> int:
    answer = msgspec.json.decode(get(f"{url}/v1/route/{MODEL}").body, type=RouteAnswer)
    claims = jwt.decode(answer.ticket, options={"verify_signature": False})
    return msgspec.convert(claims, RouteTicket).admission_seq


def registrations(worker: Program) -> int:
    return worker.log.read_text().count("registered")


def pieces(client: OpenAI, tokens: int) -> Iterator[str]:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": PROMPT}],
        max_tokens=tokens,
        temperature=0,
        stream=True,
    )
    for chunk in stream:
        if piece := chunk.choices[0].delta.content:
            yield piece


def test_what_one_tracker_plans_reaches_workers_of_the_other(mesh: LocalMesh) -> None:
    first, second = tracker(mesh, "first"), tracker(mesh, "second")
    assert PLANS not in second.log.read_text()
    assert "directive issued" in first.log.read_text()
    assert workers(first.url) == workers(second.url)
    assert gaps(mesh.coverage(MODEL)) == []


def test_either_tracker_takes_any_request(mesh: LocalMesh) -> None:
    first, second = tracker(mesh, "first"), tracker(mesh, "second")
    assert ask(first.url).text == ask(second.url).text
    numbers = [admission_number(url) for url in (first.url, second.url, first.url)]
    assert numbers == sorted(set(numbers))
    assert get(f"{first.url}/v1/keys").body == get(f"{second.url}/v1/keys").body


def test_when_the_planning_tracker_is_killed_another_plans_and_requests_go_on(
    mesh: LocalMesh,
) -> None:
    planning, second = tracker(mesh, "first"), tracker(mesh, "second")
    others = [second, tracker(mesh, "third")]
    ended = threading.Event()
    statuses: list[int] = []

    def keep_asking() -> None:
        while not ended.is_set():
            statuses.append(ask(second.url).status)

    asking = threading.Thread(target=keep_asking)
    asking.start()
    try:
        children = psutil.Process(planning.process.pid).children()
        assert children
        mesh.programs.running.remove(planning)
        planning.process.kill()
        planning.process.wait()
        killed_at = time.monotonic()
        succeeding = mesh.programs.wait_for(
            lambda: planning_one(others), TAKE_OVER_SECONDS, "another one plans"
        )
        assert time.monotonic() - killed_at < TAKE_OVER_SECONDS
        mesh.programs.wait_for(lambda: not alive(children), 5.0, "the planner has ended")
        mesh.start_worker(KNOWS_ONE, equal_budget(mesh, MODEL, 2))
        third = mesh.programs.running[-1]
        mesh.programs.wait_for(lambda: mesh.has_orders(third), 30.0, "a Worker gets its orders")
    finally:
        ended.set()
        asking.join()
    assert set(statuses) == {200}
    assert len(statuses) > 5
    assert len(family(succeeding)) == 2
    assert not any(LOST in each.log.read_text() for each in others)


def test_a_database_that_is_away_ends_no_stream_and_loses_nothing(
    mesh: LocalMesh, postgres: PostgresServer
) -> None:
    url = tracker(mesh, "second").url
    expected = ask(url, LONG_ANSWER_TOKENS).text
    known, number = workers(url), admission_number(url)
    with mesh.client() as client:
        stream = pieces(client, LONG_ANSWER_TOKENS)
        beginning = next(stream)
        postgres.stop()
        away_since = time.monotonic()
        try:
            refused = ask(url)
            assert beginning + "".join(stream) == expected
            assert refused.status == 503
            assert refused.error["code"] == "database_unavailable"
            assert int(refused.headers["Retry-After"]) > 0
            while time.monotonic() - away_since < AWAY_SECONDS:
                began = time.monotonic()
                assert ask(url).status == 503
                assert time.monotonic() - began < 3.5
                time.sleep(0.5)
        finally:
            postgres.start()
    mesh.programs.wait_for(lambda: ask(url).status == 200, 5.0, "requests are answered again")
    assert workers(url) == known
    assert admission_number(url) > number
    trackers = [tracker(mesh, name) for name in ("second", "third")]
    assert not any(LOST in each.log.read_text() for each in trackers)
    assert not any(each.has_ended() for each in trackers)


def test_when_the_tracker_that_workers_talk_to_is_killed_they_go_on_with_another(
    mesh: LocalMesh,
) -> None:
    """Nobody is lost who knows the other one; a Worker that does not shows that losses are seen."""
    killed, left = tracker(mesh, "second"), tracker(mesh, "third")
    programs = {name: tracker(mesh, name) for name in (*KNOW_BOTH, KNOWS_ONE)}
    registered = [registrations(programs[name]) for name in KNOW_BOTH]
    expected = ask(left.url, LONG_ANSWER_TOKENS).text
    replies: list[Reply] = []

    def is_lost(name: str) -> bool:
        replies.append(ask(left.url))
        states = {url: state for url, state, _ in workers(left.url)}
        return states[programs[name].url] == "lost"

    with mesh.client(left.url) as client:
        stream = pieces(client, LONG_ANSWER_TOKENS)
        beginning = next(stream)
        mesh.programs.running.remove(killed)
        killed.process.kill()
        killed.process.wait()
        assert beginning + "".join(stream) == expected
    what = "the Worker that knows only the killed one is lost"
    mesh.programs.wait_for(lambda: is_lost(KNOWS_ONE), LOSS_SECONDS, what)
    assert {reply.status for reply in replies} == {200}
    assert len({reply.text for reply in replies}) == 1
    assert left.log.read_text().count(LOST) == 1
    assert not any(is_lost(name) for name in KNOW_BOTH)
    assert all("other tracker" in programs[name].log.read_text() for name in KNOW_BOTH)
    assert [registrations(programs[name]) for name in KNOW_BOTH] == registered
