import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from meshnet_common.edge.clock import Clock, ManualClock
from meshnet_gateway.config.settings import FALLBACK_CAPACITY
from tests.common.edge.upstreams import NOBODY, Script, hang_up, post, whole
from tests.gateway.answering.test_attempts import code_of
from tests.gateway.fake_endpoint import BODY, behind, fake_endpoint
from tests.gateway.running import Running, endpoint, model, running, settings, show, until

PATH = "/v1/embeddings"
OWN = b'{"data": [{"embedding": [1, 2, 3]}]}'
OTHER = b'{"data": [{"embedding": [4, 5, 6]}]}'
SHORT = b'{"data": [{"embedding": [1, 2]}]}'


@asynccontextmanager
async def embedder(
    primary: str, fallback: str, clock: Clock | None = None, **fields: Any
) -> AsyncIterator[Running]:
    """Serve an embedding model with a fallback in a GPU Group of its own."""
    known = model(
        endpoint(primary, max_parallel_calls=4),
        kind="embedding",
        role="embedding",
        fallback=endpoint(fallback, gpu_group="cheap", max_parallel_calls=4),
        **fields,
    )
    async with running(settings(models=(known,)), clock) as one:
        yield one


async def embed(one: Running, body: bytes = BODY) -> bytes:
    response, answer = await post(one.url, body, path=PATH)
    assert response.status == 200
    return answer


@pytest.mark.parametrize(
    "script", [hang_up, whole(b"{}", 503), whole(b"busy", 429), whole(b"{}", 500), whole(SHORT)]
)
async def test_the_fallback_answers_at_the_first_fault(script: Script) -> None:
    async with (
        fake_endpoint(script) as primary,
        fake_endpoint(whole(OTHER)) as fallback,
        embedder(primary.url, fallback.url, dimensions=3) as one,
    ):
        with capture_logs() as logs:
            assert [await embed(one) for _ in range(3)] == [OTHER] * 3
        shown = await show(one.url, "/v1/gateway/embeddings/status")
        await until(lambda: not one.in_flight)

    assert len(primary.seen) == 1
    assert [log["log_level"] for log in logs if "failed over" in log["event"]] == ["warning"]
    del shown["models"]
    assert shown == {
        "model": "smol",
        "active_endpoint": fallback.url,
        "is_fallback": True,
        "fallback_configured": True,
        "breaker": "open",
        "failover_count": 1,
        "recovery_count": 0,
        "dimensions": 3,
    }


async def test_a_burst_loses_nothing_when_the_primary_dies_and_the_fallbacks_group_carries_it() -> (
    None
):
    gate = asyncio.Event()
    async with (
        fake_endpoint(behind(gate, hang_up)) as primary,
        fake_endpoint(whole(OTHER)) as fallback,
        embedder(primary.url, fallback.url) as one,
        asyncio.TaskGroup() as group,
    ):
        with capture_logs():
            burst = [group.create_task(embed(one)) for _ in range(12)]
            await until(lambda: primary.in_flight == 4)
            group_budget = one.services.registry.groups["cheap"]
            assert (group_budget.members, group_budget.total) == ((FALLBACK_CAPACITY,), 0)
            held = asyncio.Event()
            fallback.script = behind(held, whole(OTHER))
            gate.set()
            await until(lambda: group_budget.total == 4)
            held.set()
            answers = [await task for task in burst]
        await until(lambda: not one.in_flight)

    assert answers == [OTHER] * 12


async def test_it_comes_back_by_itself() -> None:
    clock = ManualClock(100.0)
    async with fake_endpoint(hang_up) as primary, fake_endpoint(whole(OTHER)) as fallback:
        with capture_logs() as logs:
            async with embedder(primary.url, fallback.url, clock) as one:
                await embed(one)
                primary.script = whole(OWN)
                clock.advance(60.0)
                answers = [await embed(one) for _ in range(3)]
                shown = await show(one.url, "/v1/gateway/embeddings/status")

    assert answers == [OWN] * 3
    assert (shown["is_fallback"], shown["recovery_count"], shown["breaker"]) == (False, 1, "closed")
    assert "embedder is back" in [log["event"] for log in logs if log["log_level"] == "info"]


async def test_a_client_may_ask_for_dimensions_of_its_own() -> None:
    asked = b'{"model": "smol", "dimensions": 2}'
    async with (
        fake_endpoint(whole(SHORT)) as primary,
        embedder(primary.url, NOBODY, dimensions=3) as one,
    ):
        assert await embed(one, asked) == SHORT


async def test_when_both_fail_the_last_word_is_passed_on() -> None:
    with capture_logs():
        async with embedder(NOBODY, NOBODY, hold_seconds=0.05) as one:
            response, body = await post(one.url, BODY, path=PATH)
            await until(lambda: not one.in_flight)

    assert (response.status, code_of(body)) == (502, "upstream_failed")


async def test_a_failure_of_both_that_no_rest_can_mend_ends_at_once() -> None:
    with capture_logs():
        async with (
            fake_endpoint(whole(b"{}", 500)) as primary,
            fake_endpoint(whole(b'{"n": 2}', 500)) as fallback,
            embedder(primary.url, fallback.url) as one,
        ):
            response, body = await post(one.url, BODY, path=PATH)

    assert (response.status, body) == (500, b'{"n": 2}')


async def test_who_waits_behind_a_primary_that_hangs_goes_to_the_fallback_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("meshnet_gateway.answering.embedding.EMBEDDING_SECONDS", 0.2)
    async with (
        fake_endpoint(behind(asyncio.Event(), whole(OWN))) as primary,
        fake_endpoint(whole(OTHER)) as fallback,
        embedder(primary.url, fallback.url) as one,
        asyncio.TaskGroup() as group,
    ):
        with capture_logs():
            burst = [group.create_task(embed(one)) for _ in range(6)]
            await until(lambda: one.services.admission.lines.total == 2)
            assert [await task for task in burst] == [OTHER] * 6

    assert len(primary.seen) < 6


async def test_an_answer_without_vectors_settles_no_dimensions() -> None:
    async with (
        fake_endpoint(whole(b'{"data": []}')) as primary,
        fake_endpoint(whole(OTHER)) as fallback,
        embedder(primary.url, fallback.url) as one,
    ):
        assert await embed(one) == b'{"data": []}'
        primary.script = whole(OWN)
        assert await embed(one) == OWN
        shown = await show(one.url, "/v1/gateway/embeddings/status")

    assert (shown["dimensions"], shown["failover_count"]) == (3, 0)


@pytest.mark.parametrize("hold_seconds", [0.0, 0.05, 60.0])
async def test_a_primary_that_hangs_leaves_time_for_the_fallback(
    monkeypatch: pytest.MonkeyPatch, hold_seconds: float
) -> None:
    monkeypatch.setattr("meshnet_gateway.answering.embedding.EMBEDDING_SECONDS", 0.1)
    async with (
        fake_endpoint(behind(asyncio.Event(), whole(OWN))) as primary,
        fake_endpoint(whole(OTHER)) as fallback,
        embedder(primary.url, fallback.url, hold_seconds=hold_seconds) as one,
    ):
        with capture_logs():
            assert await embed(one) == OTHER


async def test_a_primary_that_serves_another_model_by_now_has_failed() -> None:
    async with (
        fake_endpoint(whole(OWN), models=["smol"]) as primary,
        fake_endpoint(whole(OTHER)) as fallback,
    ):
        with capture_logs():
            async with embedder(primary.url, fallback.url) as one:
                primary.models = ["other"]
                await one.services.watch.look_round()
                assert await embed(one) == OTHER
                shown = await show(one.url, "/v1/gateway/embeddings/status")

    assert (shown["is_fallback"], shown["failover_count"], primary.seen) == (True, 1, [])


async def test_another_embedder_in_new_settings_is_learnt_anew() -> None:
    async with (
        fake_endpoint(whole(OWN)) as primary,
        fake_endpoint(whole(SHORT)) as other,
        embedder(primary.url, NOBODY, dimensions=3) as one,
    ):
        await embed(one)
        changed = model(
            endpoint(other.url), kind="embedding", fallback=endpoint(NOBODY), dimensions=2
        )
        one.services.apply(settings(models=(changed,)))
        assert await embed(one) == SHORT
        one.services.apply(settings())
        assert one.services.embedders == {}


async def test_chat_for_a_model_with_a_fallback_is_not_the_fallbacks() -> None:
    async with (
        fake_endpoint(whole(OWN)) as primary,
        fake_endpoint(whole(OTHER)) as fallback,
        embedder(primary.url, fallback.url) as one,
    ):
        await post(one.url, BODY)

    assert (len(primary.seen), len(fallback.seen)) == (1, 0)
