import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from meshnet_tracker import access
from meshnet_tracker.key_rules import ApiKey, new_key
from meshnet_tracker.settings import TrackerSettings
from meshnet_tracker.tokens import token_sha256
from tests.tracker import heads
from tests.tracker.builders import NOW, preset, shard
from tests.tracker.deliveries import STREAMED, WHERE, serving
from tests.tracker.embedders import BODY as TEXTS
from tests.tracker.embedders import WHERE as EMBEDDINGS
from tests.tracker.embedders import Embedder, embedding, encoder
from tests.tracker.running import CHAT, Reply, RunningTracker, running_tracker


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "FRESH_SECONDS", 0.0)


@pytest.fixture
async def closed(tmp_path: Path) -> AsyncIterator[RunningTracker]:
    """A Tracker that answers nobody without a key."""
    settings = TrackerSettings(requires_api_key=True)
    async with running_tracker(tmp_path / "tracker.sqlite3", settings) as running:
        await running.store.add_preset(preset(), NOW)
        yield running


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[RunningTracker]:
    """A Tracker that answers everybody."""
    async with running_tracker(tmp_path / "tracker.sqlite3") as running:
        await running.store.add_preset(preset(), NOW)
        yield running


async def make(
    tracker: RunningTracker,
    models: frozenset[str] | None = None,
    limit: int | None = None,
    tokens: int | None = None,
) -> str:
    token = new_key()
    key = ApiKey(
        name=token[-8:].replace("/", "."),
        sha256=token_sha256(token),
        shown=token[:10],
        created_at=NOW,
        models=models,
        requests_per_minute=limit,
        tokens_per_minute=tokens,
    )
    await tracker.store.api_keys.add(key)
    return token


async def revoke(tracker: RunningTracker, token: str) -> None:
    await tracker.store.api_keys.revoke(token[-8:], NOW)


def refusal(reply: Reply) -> tuple[int, str | None]:
    return reply.status, reply.error["code"]


PUBLIC = ("/v1/models", "/v1/models/tiny", "/canary/v1/models", "/v1/route/tiny")


@pytest.mark.parametrize("token", ["", "sk-none", "mn_sk_unknown"])
async def test_nobody_without_a_key_gets_anything_where_keys_are_required(
    closed: RunningTracker, token: str
) -> None:
    async with serving(closed, heads.streams) as (head,):
        for where in (WHERE, "/chat/completions"):
            reply = await closed.post(where, STREAMED, token)
            assert refusal(reply) == (401, "invalid_api_key")
            assert reply.headers["WWW-Authenticate"] == "Bearer"
        for where in PUBLIC:
            assert refusal(await closed.get(where, token)) == (401, "invalid_api_key")
        assert head.bodies == []


async def test_a_key_opens_what_is_closed(closed: RunningTracker) -> None:
    token = await make(closed)
    async with serving(closed, heads.streams):
        assert (await closed.post(WHERE, CHAT, token)).status == 200
        for where in ("/v1/models", "/v1/models/tiny", "/v1/route/tiny"):
            assert (await closed.get(where, token)).status == 200


async def test_a_key_that_a_command_has_just_made_counts_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(access, "FRESH_SECONDS", 3600.0)
    settings = TrackerSettings(requires_api_key=True)
    async with running_tracker(tmp_path / "tracker.sqlite3", settings) as tracker:
        await tracker.store.add_preset(preset(), NOW)
        for _ in range(2):
            token = await make(tracker, models=frozenset({"tiny"}))
            assert (await tracker.get("/v1/models", token)).status == 200
            assert (await tracker.get("/v1/route/tiny", token)).status == 503
        assert (await tracker.get("/v1/models", "mn_sk_unknown")).status == 401


async def test_what_workers_and_people_need_stays_open_without_a_key(
    closed: RunningTracker,
) -> None:
    await closed.serve("w1", "http://127.0.0.1:1", shard(0, 6))
    for where in ("/healthz", "/v1/presets/tiny", "/v1/keys", "/v1/coverage/tiny"):
        assert (await closed.get(where)).status == 200


async def test_without_a_requirement_any_token_will_do_but_a_dead_key_of_ours(
    opened: RunningTracker,
) -> None:
    token = await make(opened)
    async with serving(opened, heads.streams):
        for shown in ("", "sk-none", token):
            assert (await opened.post(WHERE, CHAT, shown)).status == 200
        await revoke(opened, token)
        for shown in (token, "mn_sk_unknown"):
            assert refusal(await opened.post(WHERE, CHAT, shown)) == (401, "invalid_api_key")


async def test_a_key_for_other_models_may_not_use_or_see_this_one(closed: RunningTracker) -> None:
    token = await make(closed, models=frozenset({"other"}))
    async with serving(closed, heads.streams) as (head,):
        reply = await closed.post(WHERE, CHAT, token)
        assert refusal(reply) == (403, "model_not_allowed")
        assert reply.error["param"] == "model"
        assert (await closed.get("/v1/models", token)).json["data"] == []
        for where in ("/v1/models/tiny", "/v1/route/tiny"):
            assert refusal(await closed.get(where, token)) == (403, "model_not_allowed")
        assert head.bodies == []


async def test_one_request_too_many_is_a_429_that_says_when_to_come_again(
    opened: RunningTracker,
) -> None:
    token = await make(opened, limit=2)
    async with serving(opened, heads.streams) as (head,):
        replies = [await opened.post(WHERE, CHAT, token) for _ in range(3)]
        assert [reply.status for reply in replies] == [200, 200, 429]
        assert refusal(replies[-1]) == (429, "rate_limit_exceeded")
        assert replies[-1].error["type"] == "requests"
        assert 0 < int(replies[-1].headers["Retry-After"]) <= 30
        left = [reply.headers["x-ratelimit-remaining-requests"] for reply in replies]
        assert left == ["1", "0", "0"]
        assert {reply.headers["x-ratelimit-limit-requests"] for reply in replies} == {"2"}
        assert replies[0].headers["x-ratelimit-reset-requests"] == "30s"
        assert len(head.bodies) == 2
        opened.clock.advance(31)
        streamed = await opened.post(WHERE, STREAMED, token)
        assert streamed.headers["x-ratelimit-remaining-requests"] == "0"


async def tokens_left(tracker: RunningTracker, before: int) -> int:
    """What is left to the only key, once something was spent of it."""
    (key,) = await tracker.store.api_keys.all()
    left = before
    async with asyncio.timeout(10):
        while left == before:
            await tracker.services.access.tokens.flush()
            left = (await tracker.store.api_keys.take(key, NOW)).paces[0].remaining
    return left


@pytest.mark.parametrize("chat", [CHAT, STREAMED], ids=["whole", "stream"])
async def test_answers_cost_tokens_of_their_keys_limit(
    opened: RunningTracker, chat: dict[str, object]
) -> None:
    token = await make(opened, tokens=100)
    async with serving(opened, heads.costing(30, 4)):
        first = await opened.post(WHERE, chat, token)
        assert first.headers["x-ratelimit-remaining-tokens"] == "100"
        assert await tokens_left(opened, 100) == 66
        second = await opened.post(WHERE, chat, token)
        assert second.headers["x-ratelimit-remaining-tokens"] == "66"
        assert second.headers["x-ratelimit-limit-tokens"] == "100"
        assert second.headers["x-ratelimit-reset-tokens"] == "20.4s"
        assert "x-ratelimit-limit-requests" not in second.headers
        assert await tokens_left(opened, 66) == 32
        (key,) = await opened.store.api_keys.all()
        await opened.store.api_keys.spend({key.name: 32}, NOW)
        refused = await opened.post(WHERE, chat, token)
        assert (refusal(refused), refused.error["type"]) == ((429, "rate_limit_exceeded"), "tokens")
        assert 0 < int(refused.headers["Retry-After"]) <= 60


async def test_an_answer_whose_client_left_costs_what_was_made_of_it(
    opened: RunningTracker,
) -> None:
    token = await make(opened, tokens=100)
    shown = {"Authorization": f"Bearer {token}"}
    async with (
        serving(opened, heads.costing(30, 4, then=heads.hangs_after(5))) as (head,),
        opened.session.post(f"{opened.url}{WHERE}", json=STREAMED, headers=shown) as answer,
    ):
        await answer.content.readuntil(heads.EVENTS[2])
        answer.close()
        await head.cancelled.wait()
        assert await tokens_left(opened, 100) == 100 - 30 - 2


async def test_no_volunteer_spends_more_than_an_answer_may_have(opened: RunningTracker) -> None:
    token = await make(opened, tokens=1000)
    async with serving(opened, heads.costing(10**9, 4)):
        assert (await opened.post(WHERE, CHAT, token)).status == 200
        assert await tokens_left(opened, 1000) == 1000 - 256


async def test_embeddings_cost_tokens(opened: RunningTracker) -> None:
    token = await make(opened, tokens=100)
    await opened.store.add_preset(encoder(), NOW)
    async with embedding(opened, Embedder()):
        assert (await opened.post(EMBEDDINGS, TEXTS, token)).status == 200
        assert await tokens_left(opened, 100) == 100 - 7


async def test_a_request_that_is_none_costs_nothing_of_the_limit(opened: RunningTracker) -> None:
    token = await make(opened, limit=1)
    async with serving(opened, heads.streams):
        for body in ({**CHAT, "temperature": 9}, {**CHAT, "model": "unknown"}):
            assert (await opened.post(WHERE, body, token)).status in {400, 404}
        assert (await opened.post(WHERE, CHAT, token)).status == 200


async def test_no_key_reaches_a_head_worker(closed: RunningTracker) -> None:
    token = await make(closed)
    async with serving(closed, heads.streams) as (head,):
        assert (await closed.post(WHERE, CHAT, token)).status == 200
        assert token not in str(head.headers[0])
