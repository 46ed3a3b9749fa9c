import pytest
from aiohttp import web

from meshnet_common.openai.apis import COUNTED_APIS
from meshnet_common.openai.responses import counted_tokens
from tests.tracker.builders import shard
from tests.tracker.running import CHAT, RunningTracker
from tests.tracker.served import served

WHERES = [url_path for api in COUNTED_APIS for url_path in api.counting_paths]


@pytest.mark.parametrize("where", WHERES)
async def test_a_worker_counts_the_tokens_of_the_body_as_it_came(
    tracker: RunningTracker, where: str
) -> None:
    asked: list[tuple[str, str]] = []

    async def count(request: web.Request) -> web.Response:
        asked.append((request.path, await request.text()))
        assert "x-meshnet-ticket" in request.headers
        return web.Response(body=counted_tokens(7), content_type="application/json")

    app = web.Application()
    app.router.add_post("/{where:.*}", count)
    body = b'{ "model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "input": "Hi"}'
    async with served(app) as url:
        await tracker.serve("w1", url, shard(0, 6))
        reply = await tracker.post(where, body)
    assert (reply.status, reply.json["input_tokens"]) == (200, 7)
    ((path, text),) = asked
    assert path == f"/v1/{where.removeprefix('/v1').lstrip('/')}"
    assert text.encode() == body


async def test_what_is_no_chat_is_refused_before_anybody_is_asked(tracker: RunningTracker) -> None:
    for fields, status in (({"messages": []}, 400), ({"model": "nothing"}, 404)):
        assert (await tracker.post(WHERES[0], {**CHAT, **fields})).status == status


async def test_layers_that_nobody_holds_make_it_unavailable(tracker: RunningTracker) -> None:
    reply = await tracker.post(WHERES[0], CHAT)
    assert (reply.status, reply.error["code"]) == (503, "model_unavailable")
