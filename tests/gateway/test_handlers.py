import json
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from meshnet_common.openai.apis import RESPONSES
from meshnet_common.openai.errors import model_unavailable
from meshnet_common.openai.sse import DONE_EVENT, KEEP_ALIVE_COMMENT, comment, data_event
from meshnet_gateway.handlers import ENDINGS
from tests.common.edge.upstreams import JSON, NOBODY, events, hang_up, post, upstream, whole
from tests.gateway.fake_mesh import gateway, mesh

BODY = b'{ "model":"smol",  "messages": "unread"}'
STREAM = (comment("accepted"), data_event(b'{"n": 0}'), KEEP_ALIVE_COMMENT, DONE_EVENT)


async def get(url: str, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        assert response.headers["x-request-id"]
        return response.status, await response.json()


def code_of(body: bytes) -> str | None:
    code: str | None = json.loads(body)["error"]["code"]
    return code


async def test_a_request_reaches_a_head_worker_unread_and_its_stream_comes_back() -> None:
    async with (
        upstream(events(*STREAM)) as head,
        mesh(smol=[head.url]) as one,
        gateway(one.url) as url,
    ):
        response, body = await post(url, BODY, {"Authorization": "Bearer k", "x-request-id": "r1"})

    assert (response.status, body) == (200, b"".join(STREAM))
    assert head.bodies == [BODY]
    assert head.seen[0].headers["Authorization"] == "Bearer k"
    assert {head.seen[0].headers["x-request-id"], response.headers["x-request-id"]} == {"r1"}
    assert one.asked[0].headers["Authorization"] == "Bearer k"


CREATED = data_event(b'{"type": "response.created"}')
COMPLETED = data_event(b'{"type": "response.completed", "response": {}}')


@pytest.mark.parametrize("path", RESPONSES.url_paths)
async def test_a_stream_of_responses_is_whole_without_done(path: str) -> None:
    async with (
        upstream(events(CREATED, COMPLETED)) as head,
        mesh(smol=[head.url]) as one,
        gateway(one.url) as url,
    ):
        _, body = await post(url, BODY, path=path)

    assert body == CREATED + COMPLETED


@pytest.mark.parametrize("then_break", [True, False])
async def test_a_stream_of_responses_that_is_cut_ends_with_a_numbered_error(
    then_break: bool,
) -> None:
    async with (
        upstream(events(CREATED, CREATED, then_break=then_break)) as head,
        mesh(smol=[head.url]) as one,
        gateway(one.url) as url,
    ):
        with capture_logs():
            _, body = await post(url, BODY, path="/v1/responses")

    assert body.startswith(CREATED + CREATED)
    error = json.loads(body.removeprefix(CREATED + CREATED + b"data: "))
    assert (error["type"], error["code"], error["sequence_number"]) == ("error", "worker_lost", 2)


async def test_two_head_workers_share_ten_requests_evenly() -> None:
    async with (
        upstream(whole(b'{"n": 1}')) as first,
        upstream(whole(b'{"n": 2}')) as second,
        mesh(smol=[first.url, second.url]) as one,
        gateway(one.url) as url,
    ):
        for _ in range(10):
            response, _ = await post(url, BODY)
            assert response.status == 200

    assert (len(first.seen), len(second.seen)) == (5, 5)


async def test_another_head_worker_answers_when_the_first_hangs_up() -> None:
    async with (
        upstream(hang_up) as broken,
        upstream(events(*STREAM)) as sound,
        mesh(smol=[broken.url, sound.url]) as one,
        gateway(one.url) as url,
    ):
        with capture_logs():
            response, body = await post(url, BODY)

    assert (response.status, body) == (200, b"".join(STREAM))


async def test_no_answer_at_all_is_502() -> None:
    async with mesh(smol=[NOBODY]) as one, gateway(one.url) as url:
        with capture_logs():
            response, body = await post(url, BODY)

    assert (response.status, code_of(body)) == (502, "upstream_failed")


async def test_an_unknown_model_gets_the_meshs_own_404() -> None:
    async with mesh() as one, gateway(one.url) as url:
        response, body = await post(url, BODY)

    assert (response.status, code_of(body)) == (404, "model_not_found")


async def test_an_uncovered_model_gets_the_meshs_own_503() -> None:
    async with mesh() as one, gateway(one.url) as url:
        one.refusals["smol"] = model_unavailable("Layers [10, 20) are missing.", 7)
        response, body = await post(url, BODY)

    assert (response.status, response.headers["Retry-After"]) == (503, "7")
    assert b"[10, 20)" in body


async def test_no_mesh_at_all_is_502() -> None:
    async with gateway(NOBODY) as url:
        with capture_logs():
            response, body = await post(url, BODY)

    assert (response.status, code_of(body)) == (502, "upstream_failed")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model": null}', b'{"model": NaN}'])
async def test_a_body_without_a_model_is_400(body: bytes) -> None:
    async with mesh() as one, gateway(one.url) as url:
        response, _ = await post(url, body)

    assert (response.status, one.asked) == (400, [])


@pytest.mark.parametrize("path", ENDINGS)
async def test_each_api_reaches_the_head_at_its_own_path(path: str) -> None:
    async with (
        upstream(whole(b"{}")) as head,
        mesh(smol=[head.url]) as one,
        gateway(one.url) as url,
        aiohttp.ClientSession() as session,
        session.post(f"{url}{path}", data=BODY, headers=JSON) as response,
    ):
        assert response.status == 200
        assert [asked.path for asked in head.seen] == [f"/v1{path.removeprefix('/v1')}"]


async def test_models_are_listed_and_shown_by_id() -> None:
    async with mesh(**{"smol": [], "org/name": []}) as one, gateway(one.url) as url:
        status, body = await get(f"{url}/v1/models")
        assert (status, body["object"]) == (200, "list")
        assert [model["id"] for model in body["data"]] == ["smol", "org/name"]

        for raw in ("org/name", "org%2Fname"):
            status, body = await get(f"{url}/v1/models/{raw}")
            assert (status, body["id"]) == (200, "org/name")

        status, body = await get(f"{url}/v1/models/other")
        assert (status, body["error"]["code"]) == (404, "model_not_found")


async def test_liveness_needs_no_mesh_and_readiness_does() -> None:
    async with mesh() as one, gateway(one.url) as url:
        for alias in ("ready", "readyz"):
            assert await get(f"{url}/{alias}") == (200, {"status": "ready"})
        one.is_ready = False
        status, body = await get(f"{url}/readyz")
        assert (status, body["error"]["type"]) == (503, "server_error")

        for alias in ("health", "healthz"):
            assert await get(f"{url}/{alias}") == (200, {"status": "ok"})
