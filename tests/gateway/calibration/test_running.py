import io
from typing import TextIO

import pytest
from aiohttp import web
from rich.console import Console

from meshnet_gateway.calibration.running import CalibrateOptions, calibrate
from meshnet_gateway.calibration.target import NoTargetError
from meshnet_gateway.config.settings import Endpoint, Model, Settings
from tests.common.edge.upstreams import JSON, upstream

ANSWER = b'{"usage": {"completion_tokens": 5}}'


def options(plot: TextIO | None = None, model: str = "m") -> CalibrateOptions:
    return CalibrateOptions(model, None, level_seconds=0.0, most=4, answer_tokens=8, plot=plot)


async def test_a_calibration_prints_its_table_and_draws_it() -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=ANSWER, headers=JSON)

    console, plot = Console(file=io.StringIO(), width=100), io.StringIO()
    async with upstream(answer) as server:
        endpoint = Endpoint(base_url=server.url, gpu_group="gpu1")
        settings = Settings(mesh_id="home", models=(Model(id="m", endpoints=(endpoint,)),))
        await calibrate(settings, options(plot), console)

    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.startswith("1 in flight: ")
    assert "tokens/s" in text
    assert "knee" in text
    assert plot.getvalue().startswith("<svg")


async def test_what_stands_in_the_way_of_the_budget_is_said() -> None:
    async def answer_three(_request: web.Request) -> web.Response:
        if len(server.bodies) > 3:
            raise web.HTTPServiceUnavailable
        return web.Response(body=ANSWER, headers=JSON)

    console = Console(file=io.StringIO(), width=100)
    async with upstream(answer_three) as server:
        wide = Endpoint(base_url=server.url, gpu_group="gpu1", parallel_instances=2)
        settings = Settings(mesh_id="home", models=(Model(id="m", endpoints=(wide,)),))
        await calibrate(settings, options(), console)

    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "The knee is at 1 in flight" in text
    assert "Floors in the GPU Group `gpu1` are 2 in all" in text


async def test_a_model_that_is_nowhere_is_told() -> None:
    with pytest.raises(NoTargetError):
        await calibrate(Settings(mesh_id="home", meshes=()), options(), Console())
