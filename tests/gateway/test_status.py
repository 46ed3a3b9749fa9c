import asyncio

from meshnet_gateway.config.settings import Peer
from tests.common.edge.upstreams import NOBODY, endless, post
from tests.gateway.fake_endpoint import STREAM, STREAMED, fake_endpoint
from tests.gateway.running import GROUP, endpoint, model, running, settings, show, until


async def test_everything_in_flight_and_in_line_is_shown() -> None:
    async with fake_endpoint(endless(STREAM[0])) as fake:
        known = settings(
            models=(model(endpoint(fake.url), ceiling=8, role="chat"),),
            peers=(Peer(id="there", base_url=NOBODY),),
            budgets={GROUP: 5},
        )
        async with running(known) as one, asyncio.TaskGroup() as group:
            streams = [group.create_task(post(one.url, STREAMED)) for _ in range(2)]
            await until(lambda: one.services.admission.lines.total == 1)
            shown = await show(one.url, "/v1/gateway/status")
            for stream in streams:
                stream.cancel()

    (served,) = shown["models"]
    (state,) = served.pop("endpoints")
    assert (shown["mesh_id"], shown["waiting"]) == ("here", 1)
    assert served == {
        "id": "smol",
        "capacity_key": "smol",
        "role": "chat",
        "in_flight": 1,
        "waiting": 1,
        "capacity": 1,
        "ceiling": 8,
    }
    assert (state["base_url"], state["gpu_group"]) == (fake.url, GROUP)
    assert (state["in_flight"], state["requests"]) == (1, 1)
    assert (state["breaker"], state["listing"], state["limit"]["limit"]) == ("closed", "unknown", 1)
    assert shown["groups"] == [
        {
            "gpu_group": GROUP,
            "budget": 5,
            "in_flight": 1,
            "committed": 1,
            "models": {"smol": 1},
            "advice": "scale_up",
        }
    ]
    assert shown["peers"] == [
        {"id": "there", "base_url": NOBODY, "in_flight": 0, "has_failed": False}
    ]


async def test_without_embedders_their_status_is_empty() -> None:
    async with running(settings()) as one:
        shown = await show(one.url, "/v1/gateway/embeddings/status")

    assert (shown["models"], shown["active_endpoint"], shown["breaker"]) == ([], None, "closed")


async def test_an_embedder_without_a_fallback_is_shown_with_its_endpoint() -> None:
    async with fake_endpoint() as fake:
        known = model(endpoint(fake.url), id="e", kind="embedding")
        async with running(settings(models=(known,))) as one:
            shown = await show(one.url, "/v1/gateway/embeddings/status")

    assert (shown["active_endpoint"], shown["fallback_configured"]) == (fake.url, False)
