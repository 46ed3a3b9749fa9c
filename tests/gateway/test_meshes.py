import pytest
from structlog.testing import capture_logs

from meshnet_common.edge.clock import ManualClock
from meshnet_common.edge.forwarding import upstream_session
from meshnet_common.openai.errors import ApiError, model_unavailable
from meshnet_gateway.meshes import HEADS_FRESH_SECONDS, Meshes
from tests.common.edge.upstreams import NOBODY, upstream, whole
from tests.gateway.fake_mesh import mesh


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


async def test_a_refusal_is_not_remembered() -> None:
    async with mesh() as one, upstream_session() as session:
        meshes = Meshes(session, (one.url,), ManualClock(100.0))
        with pytest.raises(ApiError):
            await meshes.heads_of("smol", {})
        one.heads["smol"] = ["http://h:1"]
        assert await meshes.heads_of("smol", {}) == ("http://h:1",)


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
