"""Who answers in a federation: this Gateway, a Peer, or nobody; and what is said then."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from meshnet_common.openai.errors import invalid_api_key, model_not_found, model_unavailable
from meshnet_gateway.config.settings import Peer
from meshnet_gateway.federation.via import VIA_HEADER, federation_loop
from tests.common.edge.upstreams import NOBODY, hang_up, post, whole
from tests.gateway.answering.test_attempts import code_of
from tests.gateway.fake_endpoint import BODY, STREAM, STREAMED, WELL, FakeEndpoint, fake_endpoint
from tests.gateway.fake_mesh import mesh
from tests.gateway.running import Running, endpoint, model, running, settings, until


def peer(one: Running | FakeEndpoint, name: str = "there", **fields: Any) -> Peer:
    return Peer(**{"id": name, "base_url": one.url, **fields})


async def test_a_model_that_is_not_served_here_is_answered_by_a_peer() -> None:
    async with (
        fake_endpoint() as there,
        running(settings(peers=(peer(there, models=("smol",)),))) as one,
    ):
        _, body = await post(one.url, STREAMED, {VIA_HEADER: "before", "Authorization": "Bearer k"})
        response, _ = await post(one.url, b'{"model": "other"}')

    assert body.endswith(b"".join(STREAM))
    assert there.seen[0].headers[VIA_HEADER] == "before, here"
    assert there.seen[0].headers["Authorization"] == "Bearer k"
    assert (response.status, len(there.seen)) == (404, 1)


async def test_what_a_mesh_forbids_is_not_asked_of_a_peer() -> None:
    async with fake_endpoint() as there, mesh() as one_mesh:
        one_mesh.refusals["smol"] = invalid_api_key()
        known = settings(meshes=(one_mesh.url,), peers=(peer(there),))
        async with running(known) as one:
            response, body = await post(one.url, BODY)

    assert (response.status, code_of(body), there.seen) == (401, "invalid_api_key", [])


async def test_a_model_that_is_resident_here_stays_here() -> None:
    async with fake_endpoint() as here, fake_endpoint() as there:
        known = settings(models=(model(endpoint(here.url)),), peers=(peer(there),))
        async with running(known) as one:
            await post(one.url, BODY)
            await post(one.url, b'{"model": "theirs"}')

    assert (len(here.seen), len(there.seen)) == (1, 1)


async def test_a_model_that_is_down_here_is_answered_by_a_peer() -> None:
    with capture_logs():
        async with fake_endpoint() as there:
            known = settings(models=(model(endpoint(NOBODY)),), peers=(peer(there),))
            async with running(known) as one:
                response, _ = await post(one.url, BODY)

    assert (response.status, len(there.seen)) == (200, 1)


async def test_a_cold_peer_is_held() -> None:
    cold = whole(b"{}", 503)
    async with fake_endpoint(cold) as there:
        known = settings(peers=(peer(there),), hold_seconds=10.0)
        async with running(known) as one, asyncio.TaskGroup() as group:
            with capture_logs():
                held = group.create_task(post(one.url, STREAMED))
                await until(lambda: len(there.seen) == 3)
                there.script = WELL
                _, body = await held
            await until(lambda: not one.in_flight)

    assert body.endswith(b"".join(STREAM))


async def test_a_peer_that_fails_is_left_for_the_next_one() -> None:
    async with fake_endpoint(hang_up) as broken, fake_endpoint() as sound:
        peers = (peer(broken, "broken"), peer(sound, "sound", priority=1))
        async with running(settings(peers=peers)) as one:
            with capture_logs():
                await post(one.url, BODY)
                await post(one.url, BODY)

    assert (len(broken.seen), len(sound.seen)) == (1, 2)


async def test_a_peer_that_lists_everything_and_lacks_the_model_is_not_asked_again() -> None:
    unknown = whole(model_not_found("smol").to_json(), 404)
    async with fake_endpoint(unknown) as empty, fake_endpoint() as other:
        known = settings(peers=(peer(empty),), hold_seconds=60.0)
        async with running(known) as one:
            with capture_logs():
                response, body = await post(one.url, BODY)
                one.services.apply(settings(peers=(peer(empty), peer(other, "other", priority=1))))
                found, _ = await post(one.url, BODY)

    assert (response.status, code_of(body)) == (404, "model_not_found")
    assert (found.status, len(empty.seen), len(other.seen)) == (200, 1, 1)


async def test_a_peer_from_which_there_is_no_way_is_left_for_another_one() -> None:
    loop = whole(federation_loop("No way.", ()).to_json(), 508)
    unknown = whole(model_not_found("smol").to_json(), 404)
    async with (
        fake_endpoint(loop) as first,
        fake_endpoint() as second,
        running(settings(peers=(peer(first), peer(second, "b", priority=1)))) as one,
    ):
        with capture_logs():
            found, _ = await post(one.url, BODY)
            second.script = unknown
            none, _ = await post(one.url, BODY)

    assert (found.status, none.status, len(first.seen)) == (200, 404, 2)


async def test_peers_share_by_weight() -> None:
    async with fake_endpoint() as light, fake_endpoint() as heavy:
        peers = (peer(light, "light", weight=1), peer(heavy, "heavy", weight=3))
        async with running(settings(peers=peers)) as one:
            for _ in range(8):
                await post(one.url, BODY)

    assert (len(light.seen), len(heavy.seen)) == (2, 6)


@asynccontextmanager
async def federation(names: str, **fields: Any) -> AsyncIterator[dict[str, Running]]:
    """Gateways that each list all the others, as `*` unless the fields say otherwise."""
    async with AsyncExitStack() as stack:
        gateways = {
            name: await stack.enter_async_context(running(settings(mesh_id=name))) for name in names
        }
        for name, one in gateways.items():
            others = (peer(it, other, **fields) for other, it in gateways.items() if other != name)
            one.services.apply(settings(mesh_id=name, peers=tuple(others)))
        yield gateways


async def test_a_request_never_runs_in_circles() -> None:
    async with federation("ab", models=("smol",)) as gateways:
        with capture_logs():
            response, body = await post(gateways["a"].url, BODY)
            back, told = await post(gateways["a"].url, BODY, {VIA_HEADER: "a, b"})

    assert (response.status, code_of(body)) == (508, "federation_loop")
    assert (back.status, code_of(told)) == (508, "federation_loop")


async def test_a_peer_that_goes_by_another_name_is_a_loop() -> None:
    async with running(settings(mesh_id="a")) as a, running(settings(mesh_id="b")) as b:
        a.services.apply(settings(mesh_id="a", peers=(peer(b, "b"),)))
        b.services.apply(settings(mesh_id="b", peers=(peer(a, "c"),)))
        with capture_logs():
            response, body = await post(a.url, BODY)

    assert (response.status, code_of(body)) == (508, "federation_loop")


@pytest.mark.parametrize("names", ["ab", "abc"])
async def test_a_model_that_nobody_has_is_unknown_however_meshes_list_each_other(
    names: str,
) -> None:
    async with federation(names) as gateways:
        for one in gateways.values():
            for name in (b"typo", b'a\\"b', "ü".encode()):
                with capture_logs():
                    response, body = await post(one.url, b'{"model": "%s"}' % name)
                assert (response.status, code_of(body)) == (404, "model_not_found")


@pytest.mark.parametrize("code", [404, 508])
async def test_what_peers_do_not_have_leaves_the_word_to_the_mesh(code: int) -> None:
    says = model_not_found("smol") if code == 404 else federation_loop("No way.", ())
    async with fake_endpoint(whole(says.to_json(), code)) as there, mesh() as one_mesh:
        one_mesh.refusals["smol"] = model_unavailable("Layers are missing.", 7)
        known = settings(meshes=(one_mesh.url,), peers=(peer(there),), hold_seconds=60.0)
        async with running(known) as one:
            with capture_logs():
                response, _ = await post(one.url, BODY)

    assert (response.status, response.headers["Retry-After"], len(there.seen)) == (503, "7", 1)
