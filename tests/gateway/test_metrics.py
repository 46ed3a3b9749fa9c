import asyncio

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from meshnet_gateway.config.settings import Peer
from meshnet_gateway.metrics import exposition
from tests.common.edge.upstreams import NOBODY, endless, post
from tests.gateway.fake_endpoint import STREAM, STREAMED, fake_endpoint
from tests.gateway.running import GROUP, Running, endpoint, model, running, settings, until


def figures(one: Running) -> dict[tuple[str, ...], float]:
    """Every figure by its name and its labels."""
    page = exposition(one.services).decode()
    return {
        (sample.name.removeprefix("meshnet_gateway_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


async def test_figures_tell_what_is_in_flight_and_in_line_and_go_back_to_zero() -> None:
    async with fake_endpoint(endless(STREAM[0])) as fake:
        known = settings(
            models=(model(endpoint(fake.url)),),
            budgets={GROUP: 5},
            peers=(Peer(id="there", base_url=NOBODY),),
        )
        async with running(known) as one:
            async with asyncio.TaskGroup() as group:
                streams = [group.create_task(post(one.url, STREAMED)) for _ in range(2)]
                await until(lambda: one.services.admission.lines.total == 1)
                busy = figures(one)
                for stream in streams:
                    stream.cancel()
            await until(lambda: not one.in_flight)
            idle = figures(one)

    for name in (("in_flight", fake.url, "smol"), ("waiting", "smol"), ("group_in_flight", GROUP)):
        assert (busy[name], idle[name]) == (1, 0)
    assert (busy["body_bytes",], idle["body_bytes",]) == (2 * len(STREAMED), 0)
    assert idle["requests_total", fake.url, "smol"] == 1
    assert (idle["limit", fake.url, "smol"], idle["group_budget", GROUP]) == (1, 5)
    assert (idle["breaker_closed", fake.url, "smol"], idle["peer_in_flight", "there"]) == (1, 0)


async def test_an_embedders_transitions_are_counted() -> None:
    embedder = model(endpoint(NOBODY), kind="embedding", fallback=endpoint(NOBODY))
    async with running(settings(models=(embedder,)), watched=False) as one:
        one.services.sides_of("smol")
        shown = figures(one)

    assert (shown["failover_total", "smol"], shown["fallback_active", "smol"]) == (0, 0)


async def test_the_page_is_served() -> None:
    async with (
        running(settings()) as one,
        aiohttp.ClientSession() as session,
        session.get(f"{one.url}/metrics") as response,
    ):
        assert response.content_type == "text/plain"
        assert b"meshnet_gateway_in_flight" in await response.read()
