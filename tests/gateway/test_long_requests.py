import json

import pytest

from meshnet_common.openai.requests import outline_request
from meshnet_gateway.handlers import ENDINGS
from tests.common.edge.threads import noted_threads
from tests.common.edge.upstreams import post
from tests.gateway.fake_mesh import gateway, mesh


@pytest.mark.parametrize("path", ENDINGS)
@pytest.mark.parametrize("is_long", [False, True])
async def test_a_long_body_is_read_beside_the_event_loop(
    path: str, is_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = noted_threads(monkeypatch)
    user = "u" * (20_000 if is_long else 1)
    body = json.dumps({"model": "nobody has it", "user": user}).encode()
    async with mesh() as one, gateway(one.url) as url:
        response, _ = await post(url, body, path=path)

    assert response.status == 404
    assert (outline_request in beside) == is_long
