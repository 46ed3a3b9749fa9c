import asyncio
import os
import signal

import aiohttp
import pytest
from structlog.testing import capture_logs

from meshnet_common.edge.serving import PortInUseError
from meshnet_gateway.app import serve
from meshnet_gateway.config.faults import SettingsError
from meshnet_gateway.config.settings import Settings
from tests.common.edge.upstreams import LOOPBACK, NOBODY
from tests.gateway.fake_mesh import mesh
from tests.gateway.running import endpoint, model, settings, show


async def test_the_gateway_serves_until_a_signal_and_logs_its_url() -> None:
    urls: asyncio.Queue[str] = asyncio.Queue(1)
    async with mesh(smol=[]) as one, asyncio.timeout(10), asyncio.TaskGroup() as group:
        with capture_logs() as logs:
            group.create_task(
                serve(lambda: settings(meshes=(one.url,)), LOOPBACK, 0, urls.put_nowait)
            )
            url = await urls.get()
        async with aiohttp.ClientSession() as session, session.get(f"{url}/readyz") as response:
            assert response.status == 200
        os.kill(os.getpid(), signal.SIGTERM)

    assert logs[0]["event"] == "gateway listening"
    assert logs[0]["url"] == url


async def test_a_port_in_use_is_told() -> None:
    async with mesh() as one:
        with pytest.raises(PortInUseError):
            await serve(settings, LOOPBACK, int(one.url.rsplit(":", 1)[1]), print)


async def test_a_hangup_signal_has_the_settings_read_anew() -> None:
    urls: asyncio.Queue[str] = asyncio.Queue(1)
    known = [settings(models=(model(endpoint(NOBODY), id=name),)) for name in ("old", "new")]
    with capture_logs() as logs:
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            group.create_task(serve(lambda: known.pop(0), LOOPBACK, 0, urls.put_nowait))
            url = await urls.get()
            before = await show(url, "/v1/models")
            os.kill(os.getpid(), signal.SIGHUP)
            while (after := await show(url, "/v1/models")) == before:
                pass
            os.kill(os.getpid(), signal.SIGTERM)

    assert [shown["data"][0]["id"] for shown in (before, after)] == ["old", "new"]
    (told,) = [line for line in logs if line["event"] == "settings read anew"]
    assert (told["joined"], told["left"]) == (f"new at {NOBODY}", f"old at {NOBODY}")


async def test_settings_that_cannot_be_used_end_it_at_once() -> None:
    def faulty() -> Settings:
        raise SettingsError(("mesh_id: is missing",))

    with pytest.raises(SettingsError):
        await serve(faulty, LOOPBACK, 0, print)
