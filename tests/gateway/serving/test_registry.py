import pytest

from meshnet_common.edge.clock import ManualClock
from meshnet_common.edge.forwarding import upstream_session
from meshnet_common.openai.errors import ApiError
from meshnet_gateway.config.settings import FALLBACK_CAPACITY, FoundEndpoints, Model, Settings
from meshnet_gateway.meshes import Meshes
from meshnet_gateway.serving.endpoint_state import Outcome
from meshnet_gateway.serving.registry import Registry
from tests.gateway.fake_mesh import mesh
from tests.gateway.running import GROUP, endpoint, model, settings

ONE, TWO = "http://one", "http://two"


class NoMeshes(Meshes):
    """Whoever asks them has found nothing before."""

    def __init__(self) -> None:
        pass


def registry(known: Settings) -> Registry:
    return Registry(known, NoMeshes(), lambda: 0.0)


async def test_a_named_model_is_served_by_its_own_endpoints() -> None:
    known = registry(settings(models=(model(endpoint(ONE), endpoint(TWO)),)))
    served = await known.find("smol", {}, anew=False)

    assert [state.endpoint.base_url for state in served] == [ONE, TWO]
    assert known.configured == (served,)


async def test_without_a_mesh_any_other_model_is_unknown() -> None:
    with pytest.raises(ApiError) as caught:
        await registry(settings()).find("smol", {}, anew=False)

    assert (caught.value.status, caught.value.body.code) == (404, "model_not_found")


async def test_what_a_mesh_serves_is_not_limited_here_unless_the_operator_says_so() -> None:
    named = Model(id="named", ceiling=9, found=FoundEndpoints(parallel_instances=2))
    tuned = Model(id="tuned", ceiling=30, hold_seconds=5.0)
    async with (
        mesh(smol=["http://h:1"], named=["http://h:2"], tuned=["http://h:3"]) as one,
        upstream_session() as session,
    ):
        known = settings(meshes=(one.url,), models=(named, tuned), max_concurrency=40)
        meshes = Meshes(session, (one.url,), ManualClock(0.0))
        found = Registry(known, meshes, lambda: 0.0)
        assert (await found.find("smol", {}, anew=False)).capacity == 40
        assert (await found.find("named", {}, anew=False)).capacity == 2
        assert (await found.find("tuned", {}, anew=False)).capacity == 30


async def test_who_waits_for_a_model_that_a_mesh_lost_for_a_moment_keeps_waiting_for_it() -> None:
    async with mesh(smol=["http://h:1"]) as one, upstream_session() as session:
        meshes = Meshes(session, (one.url,), ManualClock(0.0))
        found = Registry(settings(meshes=(one.url,)), meshes, lambda: 0.0)
        before = await found.find("smol", {}, anew=False)
        one.heads = {}
        assert await found.find("smol", {}, anew=False) is before  # Remembered for a moment.
        with pytest.raises(ApiError):
            await found.find("smol", {}, anew=True)
        one.heads = {"smol": ["http://h:2"]}
        assert await found.find("smol", {}, anew=True) is before

        one.heads = {"smol": ["http://i:2"]}
        await found.find("smol", {}, anew=True)

    assert [state.endpoint.base_url for state in before] == ["http://i:2"]
    assert list(found.groups) == ["i"]


def test_floors_are_kept_in_the_groups_of_named_endpoints() -> None:
    chat = model(endpoint(ONE, parallel_instances=2), role="chat")
    known = registry(settings(models=(chat,), budgets={GROUP: 5}))
    group = known.groups[GROUP]

    assert (group.budget, group.committed, group.target("smol")) == (5, 2, 2)


def test_a_fallback_is_a_member_of_its_own_of_its_own_group() -> None:
    embedder = model(
        endpoint(ONE), id="e", kind="embedding", fallback=endpoint(TWO, gpu_group="else")
    )
    known = registry(settings(models=(embedder,)))
    primary, fallback = known.sides("e")

    assert (primary.role, fallback.role) == ("default", "embedding")
    assert known.groups["else"].members == (FALLBACK_CAPACITY,)
    assert [state.endpoint.base_url for state in fallback] == [TWO]


async def test_settings_read_anew_keep_what_is_in_flight() -> None:
    known = registry(settings(models=(model(endpoint(ONE)),), budgets={GROUP: 3}))
    served = await known.find("smol", {}, anew=False)
    state = next(iter(served))
    attempt = state.begin(1, 0.0)
    wider = model(endpoint(ONE, parallel_instances=4), endpoint(TWO))
    known.apply(settings(models=(wider,), budgets={GROUP: 7}), known.meshes)

    assert await known.find("smol", {}, anew=False) is served
    assert (served.in_flight, served.capacity) == (1, 5)
    assert (known.groups[GROUP].budget, known.groups[GROUP].total) == (7, 1)

    known.apply(settings(), known.meshes)
    group = known.groups[GROUP]
    assert (group.budget, group.total) == (None, 1)
    state.end(attempt, Outcome.SUCCEEDED, 0.0, others=0)
    assert (group.total, group.members) == (0, ())


def test_a_fallback_that_is_dropped_leaves_its_group() -> None:
    with_one = model(endpoint(ONE), kind="embedding", fallback=endpoint(TWO, gpu_group="else"))
    known = registry(settings(models=(with_one,)))
    known.apply(settings(models=(model(endpoint(ONE), kind="embedding"),)), known.meshes)

    assert list(known.groups) == [GROUP]
