import pytest
from structlog.testing import capture_logs

from meshnet_gateway.config.settings import Peer, Secret
from meshnet_gateway.federation.via import VIA_HEADER
from tests.common.edge.upstreams import NOBODY
from tests.gateway.fake_endpoint import fake_endpoint
from tests.gateway.fake_mesh import mesh
from tests.gateway.running import endpoint, model, running, settings, show

MODELS = "/v1/models"


async def listed(url: str) -> list[tuple[str, str]]:
    shown = await show(url, MODELS)
    assert shown["object"] == "list"
    return [(one["id"], one["owned_by"]) for one in shown["data"]]


async def test_models_of_endpoints_meshes_and_peers_are_listed_once_with_their_origin() -> None:
    async with (
        mesh(smol=[], big=[]) as one_mesh,
        fake_endpoint(models=["theirs", "big", "hidden"]) as there,
    ):
        models, key = ("theirs", "big"), Secret("theirs")
        peer = Peer(id="there", base_url=there.url, models=models, api_key=key)
        known = settings(
            meshes=(one_mesh.url,), models=(model(endpoint(NOBODY), id="own"),), peers=(peer,)
        )
        with capture_logs():
            async with running(known) as one:
                found = await listed(one.url)
                shown = await show(one.url, f"{MODELS}/theirs")

    assert found == [
        ("own", "meshnet-gateway"),
        ("smol", "meshnet"),
        ("big", "meshnet"),
        ("theirs", "there"),
    ]
    assert (shown["id"], shown["owned_by"]) == ("theirs", "there")
    assert there.looks[0].headers[VIA_HEADER] == "here"
    assert there.looks[0].headers["Authorization"] == "Bearer theirs"


async def test_peers_that_list_each_other_do_not_ask_in_circles() -> None:
    async with running(settings(mesh_id="a")) as a:
        to_a = Peer(id="a", base_url=a.url)
        async with running(settings(mesh_id="b", peers=(to_a,))) as b:
            own = (model(endpoint(NOBODY), id="own"),)
            to_b = Peer(id="b", base_url=b.url)
            with capture_logs():
                a.services.apply(settings(mesh_id="a", models=own, peers=(to_b,)))
                assert await listed(a.url) == [("own", "meshnet-gateway")]
                assert await listed(b.url) == [("own", "a")]


@pytest.mark.parametrize("is_named", [True, False])
async def test_what_does_not_answer_hides_nothing_else(is_named: bool) -> None:
    async with fake_endpoint(models=["theirs"]) as there:
        peers = (Peer(id="gone", base_url=NOBODY), Peer(id="there", base_url=there.url))
        own = (model(endpoint(there.url), id="own"),) if is_named else ()
        with capture_logs():
            async with running(settings(meshes=(NOBODY,), models=own, peers=peers)) as one:
                found = await listed(one.url)

    assert found[-1] == ("theirs", "there")
