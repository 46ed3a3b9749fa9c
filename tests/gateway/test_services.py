import asyncio

from structlog.testing import capture_logs

from meshnet_gateway.app import reload
from meshnet_gateway.config.faults import SettingsError
from meshnet_gateway.config.settings import Settings
from tests.common.edge.upstreams import NOBODY, post
from tests.gateway.fake_endpoint import STREAM, STREAMED, WELL, behind, fake_endpoint
from tests.gateway.running import endpoint, model, running, settings, until


async def test_settings_read_anew_drop_no_stream_and_move_who_waits() -> None:
    gate = asyncio.Event()
    async with fake_endpoint(behind(gate, WELL)) as old, fake_endpoint() as new:
        known = settings(models=(model(endpoint(old.url, max_concurrent_requests=1)),))
        async with running(known) as one, asyncio.TaskGroup() as group:
            streaming = group.create_task(post(one.url, STREAMED))
            await old.arrived.wait()
            waiting = group.create_task(post(one.url, STREAMED))
            await until(lambda: one.services.admission.lines.total == 1)
            moved_to = settings(models=(model(endpoint(new.url, gpu_group="else")),))
            with capture_logs() as logs:
                reload(one.services, lambda: moved_to)
                _, moved = await waiting
            gate.set()
            _, stayed = await streaming
            await until(lambda: not one.in_flight)

    assert moved.endswith(b"".join(STREAM))
    assert stayed.endswith(b"".join(STREAM))
    assert (len(old.seen), len(new.seen)) == (1, 1)
    assert "settings read anew" in [log["event"] for log in logs]


async def test_faulty_settings_change_nothing() -> None:
    def faulty() -> Settings:
        raise SettingsError(("mesh_id: is missing",))

    known = settings(models=(model(endpoint(NOBODY)),))
    with capture_logs() as logs:
        async with running(known) as one:
            reload(one.services, faulty)
            assert one.services.settings is known

    assert [fault for log in logs for fault in log.get("faults", ())] == ["mesh_id: is missing"]


async def test_an_endpoint_makes_it_ready_and_so_does_a_mesh() -> None:
    async with fake_endpoint() as fake:
        with capture_logs():
            for models, is_ready in (
                ((), False),
                ((model(endpoint(fake.url)),), True),
                (
                    (model(endpoint(NOBODY)),),
                    False,
                ),
            ):
                async with running(settings(models=models)) as one:
                    assert await one.services.is_ready() == is_ready


async def test_an_embedder_keeps_its_state() -> None:
    known = model(endpoint(NOBODY), kind="embedding", fallback=endpoint(NOBODY))
    with capture_logs():
        async with running(settings(models=(known, model(endpoint(NOBODY), id="plain")))) as one:
            first, again = (one.services.sides_of("smol") for _ in range(2))
            assert first is not None
            assert again is not None
            assert first.embedder is again.embedder
            assert one.services.sides_of("plain") is one.services.sides_of("unknown") is None
