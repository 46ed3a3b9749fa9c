import asyncio

from structlog.testing import capture_logs

from meshnet_common.edge.clock import ManualClock
from meshnet_common.openai.sse import DONE_EVENT, data_event
from meshnet_gateway.upstreams import MAX_ATTEMPTS
from tests.common.edge.upstreams import NOBODY, endless, events, hang_up, post, upstream, whole
from tests.gateway.fake_mesh import gateway, mesh

BODY = b'{"model": "smol"}'


async def test_a_head_that_streams_is_passed_over_for_an_idle_one() -> None:
    async with (
        upstream(endless(data_event(b"{}"))) as busy,
        upstream(whole(b"{}")) as idle,
        mesh(smol=[busy.url, idle.url]) as one,
        gateway(one.url) as url,
        asyncio.TaskGroup() as group,
    ):
        streaming = group.create_task(post(url, BODY))
        await busy.arrived.wait()
        for _ in range(4):
            await post(url, BODY)
        streaming.cancel()

    assert (len(busy.seen), len(idle.seen)) == (1, 4)


async def test_a_connection_counts_until_its_client_has_left() -> None:
    async with (
        upstream(endless(data_event(b"{}"))) as first,
        upstream(whole(b"{}")) as second,
        mesh(smol=[first.url, second.url]) as one,
        gateway(one.url) as url,
        asyncio.timeout(5),
    ):
        async with asyncio.TaskGroup() as group:
            streaming = group.create_task(post(url, BODY))
            await first.arrived.wait()
            streaming.cancel()
        await first.left.wait()
        await post(url, BODY)
        first.arrived.clear()
        async with asyncio.TaskGroup() as group:
            streaming = group.create_task(post(url, BODY))
            await first.arrived.wait()
            streaming.cancel()

    assert (len(first.seen), len(second.seen)) == (2, 1)


async def test_an_unreachable_head_is_left_alone_for_a_while() -> None:
    clock = ManualClock(100.0)
    async with (
        upstream(hang_up) as broken,
        upstream(whole(b"{}")) as sound,
        mesh(smol=[broken.url, sound.url]) as one,
        gateway(one.url, clock=clock) as url,
    ):
        with capture_logs() as logs:
            for _ in range(4):
                response, _ = await post(url, BODY)
                assert response.status == 200
        assert (len(broken.seen), len(sound.seen)) == (1, 4)
        assert logs[0]["head"] == broken.url

        clock.advance(60.0)
        with capture_logs():
            await post(url, BODY)
        assert len(broken.seen) == 2


async def test_a_head_that_refuses_keeps_its_turn() -> None:
    async with (
        upstream(whole(b"{}", 503)) as full,
        upstream(whole(b"{}")) as sound,
        mesh(smol=[full.url, sound.url]) as one,
        gateway(one.url) as url,
    ):
        with capture_logs():
            for _ in range(4):
                await post(url, BODY)

    assert (len(full.seen), len(sound.seen)) == (4, 4)


async def test_attempts_are_counted() -> None:
    async with (
        upstream(events(data_event(b"{}"), DONE_EVENT)) as never_reached,
        mesh(smol=[*(f"{NOBODY}/{n}" for n in range(MAX_ATTEMPTS)), never_reached.url]) as one,
        gateway(one.url) as url,
    ):
        with capture_logs():
            response, _ = await post(url, BODY)

    assert (response.status, never_reached.seen) == (502, [])
