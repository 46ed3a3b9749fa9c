import asyncio
import os
import signal

import aiohttp
import pytest
from structlog.testing import capture_logs

from meshnet_common.edge.serving import PortInUseError
from meshnet_gateway.app import serve
from tests.common.edge.upstreams import LOOPBACK
from tests.gateway.fake_mesh import mesh
from tests.gateway.running import settings


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
