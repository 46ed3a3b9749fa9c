import asyncio
from collections.abc import Coroutine

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from meshnet_common.edge.clock import ManualClock
from meshnet_common.edge.forwarding import upstream_session
from meshnet_common.edge.http import new_application
from meshnet_common.edge.serving import listening
from meshnet_common.openai.errors import (
    ApiError,
    invalid_api_key,
    model_not_found,
    model_unavailable,
)
from meshnet_gateway.meshes import (
    HEADS_FRESH_SECONDS,
    MOST_UNKNOWN_LOOKS,
    UNKNOWN_FRESH_SECONDS,
    Meshes,
)
from tests.common.edge.upstreams import LOOPBACK, NOBODY, upstream, whole
from tests.gateway.fake_mesh import mesh
from tests.gateway.running import until


async def test_head_workers_are_remembered_for_a_moment() -> None:
    clock = ManualClock(100.0)
    async with mesh(smol=["http://h:1/"]) as one, upstream_session() as session:
        meshes = Meshes(session, (one.url,), clock)
        assert await meshes.heads_of("smol", {}) == ("http://h:1",)
        assert await meshes.heads_of("smol", {}) == ("http://h:1",)
        assert len(one.asked) == 1

        one.heads["smol"] = ["http://h:2"]
        clock.advance(HEADS_FRESH_SECONDS)
        assert await meshes.heads_of("smol", {}) == ("http://h:2",)


async def test_a_model_that_is_new_in_a_mesh_is_found_and_an_unknown_one_is_looked_for_once() -> (
    None
):
    clock = ManualClock(100.0)
    async with mesh() as one, upstream_session() as session:
        meshes = Meshes(session, (one.url,), clock)
        for _ in range(5):
            with pytest.raises(ApiError, match="does not exist"):
                await meshes.heads_of("smol", {})
        assert len(one.asked) == 1

        one.heads["smol"] = ["http://h:1"]
        clock.advance(UNKNOWN_FRESH_SECONDS)
        assert await meshes.heads_of("smol", {}) == ("http://h:1",)


@pytest.mark.parametrize(
    "refusal", [model_unavailable("Layers are missing.", 7), invalid_api_key()]
)
async def test_another_refusal_is_not_remembered(refusal: ApiError) -> None:
    async with mesh() as one, upstream_session() as session:
        one.refusals["smol"] = refusal
        meshes = Meshes(session, (one.url,), ManualClock(100.0))
        with pytest.raises(ApiError):
            await meshes.heads_of("smol", {})
        del one.refusals["smol"]
        one.heads["smol"] = ["http://h:1"]
        assert await meshes.heads_of("smol", {}) == ("http://h:1",)


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("code", [200, 404, 503])
async def test_many_who_ask_for_one_model_share_a_look(code: int, *, anew: bool) -> None:
    async with mesh() as one, upstream_session() as session:
        if code == 200:
            one.heads["smol"] = ["http://h:1"]
        if code == 503:
            one.refusals["smol"] = model_unavailable("Layers are missing.", 7)
        meshes = Meshes(session, (one.url,), ManualClock(100.0))
        asking = [meshes.heads_of("smol", {}, anew=anew) for _ in range(20)]
        async with asyncio.TaskGroup() as group:
            told = [group.create_task(outcome(one_asking)) for one_asking in asking]

    assert {task.result() for task in told} == {code}
    assert len(one.asked) <= 2


async def outcome(asking: Coroutine[None, None, tuple[str, ...]]) -> int:
    try:
        await asking
    except ApiError as error:
        return error.status
    return 200


async def test_nobody_is_told_that_the_key_of_another_was_refused() -> None:
    mine = {"Authorization": "Bearer mine"}

    async def by_key(request: web.Request) -> web.StreamResponse:
        if "Authorization" not in request.headers:
            raise invalid_api_key()
        return web.json_response({"endpoints": ["http://h:1"]})

    app = new_application()
    app.router.add_get("/v1/head-workers/{model}", by_key)
    async with listening(app, LOOPBACK, 0) as url, upstream_session() as session:
        meshes = Meshes(session, (url,), ManualClock(100.0))
        async with asyncio.TaskGroup() as group:
            told = [
                group.create_task(outcome(meshes.heads_of("smol", headers, anew=True)))
                for headers in ({}, mine, {}, mine)
            ]

    assert [task.result() for task in told] == [401, 200, 200, 200]


async def test_made_up_names_flood_no_mesh_and_push_no_model_out() -> None:
    gate, at_once = asyncio.Event(), list[int]()

    async def slowly(request: web.Request) -> web.StreamResponse:
        at_once.append(at_once[-1] + 1 if at_once else 1)
        await gate.wait()
        at_once.append(at_once[-1] - 1)
        if request.match_info["model"] == "smol":
            return web.json_response({"endpoints": ["http://h:1"]})
        raise model_not_found("x")

    app = new_application()
    app.router.add_get("/v1/head-workers/{model}", slowly)
    clock = ManualClock(100.0)
    async with listening(app, LOOPBACK, 0) as url, upstream_session() as session:
        meshes = Meshes(session, (url,), clock)
        gate.set()
        await meshes.heads_of("smol", {})
        gate.clear()
        clock.advance(HEADS_FRESH_SECONDS)
        async with asyncio.TaskGroup() as group:
            for number in range(50):
                group.create_task(outcome(meshes.heads_of(f"x{number}", {})))
            await until(lambda: at_once[-1] == MOST_UNKNOWN_LOOKS)
            known = group.create_task(meshes.heads_of("smol", {}))
            # It need not wait for what may not exist.
            await until(lambda: at_once[-1] == MOST_UNKNOWN_LOOKS + 1)
            gate.set()
        assert await known == ("http://h:1",)

    assert max(at_once) == MOST_UNKNOWN_LOOKS + 1


async def test_several_meshes_lend_their_head_workers_together() -> None:
    async with (
        mesh(smol=["http://h:1"]) as one,
        mesh() as two,
        mesh(smol=["http://h:3"]) as three,
        upstream_session() as session,
    ):
        trackers = (one.url, two.url, NOBODY, three.url)
        with capture_logs():
            heads = await Meshes(session, trackers, ManualClock(0.0)).heads_of("smol", {})

    assert heads == ("http://h:1", "http://h:3")


async def test_trackers_of_one_mesh_lend_each_head_worker_once_and_one_is_enough() -> None:
    async with (
        mesh(smol=["http://h:1", "http://h:2"]) as one,
        mesh(smol=["http://h:2/", "http://h:1"]) as two,
        upstream_session() as session,
    ):
        clock = ManualClock(0.0)
        heads = await Meshes(session, (one.url, two.url), clock).heads_of("smol", {})
        with capture_logs():
            left = await Meshes(session, (NOBODY, two.url), clock).heads_of("smol", {})

    assert heads == ("http://h:1", "http://h:2")
    assert set(left) == set(heads)


async def test_the_meshs_own_refusal_is_passed_on() -> None:
    async with mesh() as one, mesh() as two, upstream_session() as session:
        two.refusals["smol"] = model_unavailable("Layers [10, 20) are missing.", 7)
        with pytest.raises(ApiError, match=r"\[10, 20\)") as caught:
            await Meshes(session, (one.url, two.url), ManualClock(0.0)).heads_of("smol", {})

    assert (caught.value.status, caught.value.headers["Retry-After"]) == (503, "7")


async def test_a_model_without_any_head_worker_is_unavailable() -> None:
    async with mesh(smol=[]) as one, upstream_session() as session:
        with pytest.raises(ApiError) as caught:
            await Meshes(session, (one.url,), ManualClock(0.0)).heads_of("smol", {})

    assert (caught.value.status, caught.value.body.code) == (503, "model_unavailable")


@pytest.mark.parametrize("model", ["org/name", "a%2Fb", "ü b?c#d"])
async def test_any_model_name_survives_the_url(model: str) -> None:
    async with mesh(**{model: ["http://h:1"]}) as one, upstream_session() as session:
        heads = await Meshes(session, (one.url,), ManualClock(0.0)).heads_of(model, {})

    assert heads == ("http://h:1",)


async def test_a_model_name_of_dots_leads_nowhere_else() -> None:
    async with mesh() as one, upstream_session() as session:
        with pytest.raises(ApiError) as caught:
            await Meshes(session, (one.url,), ManualClock(0.0)).heads_of("..", {})

    assert (caught.value.body.code, one.asked) == ("model_not_found", [])


async def test_a_tracker_that_answers_nonsense_counts_as_silent() -> None:
    async with upstream(whole(b"<html>", 500)) as odd, upstream_session() as session:
        meshes = Meshes(session, (odd.url, NOBODY), ManualClock(0.0))
        with capture_logs(), pytest.raises(ApiError) as caught:
            await meshes.models({})

    assert (caught.value.status, caught.value.body.code) == (502, "upstream_failed")


async def test_models_of_all_meshes_are_listed_once_with_all_their_fields() -> None:
    async with mesh(a=[], b=[]) as one, mesh(b=[], c=[]) as two, upstream_session() as session:
        with capture_logs():
            models = await Meshes(session, (one.url, NOBODY, two.url), ManualClock(0.0)).models({})

    assert [model["id"] for model in models] == ["a", "b", "c"]
    assert models[0]["meshnet"] == {"x": 1}


async def test_one_ready_mesh_is_enough() -> None:
    async with mesh() as one, mesh() as two, upstream_session() as session:
        meshes = Meshes(session, (one.url, two.url, NOBODY), ManualClock(0.0))
        one.is_ready = False
        assert await meshes.ready()

        two.is_ready = False
        assert not await meshes.ready()
