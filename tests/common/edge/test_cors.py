from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from meshnet_common.edge.cors import EXPOSED_HEADERS
from meshnet_common.edge.http import new_application
from meshnet_common.edge.serving import listening
from meshnet_common.openai.document import openapi_document
from meshnet_common.openai.errors import model_not_found

PAGE = {"Origin": "https://page.example"}
QUESTION = {
    **PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
}


async def answer(_request: web.Request) -> web.Response:
    return web.json_response({})


async def refuse(_request: web.Request) -> web.Response:
    raise model_not_found("m")


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    app = new_application()
    app.router.add_post("/v1/chat/completions", answer)
    app.router.add_post("/v1/refused", refuse)
    app.router.add_post("/admin/v1/secret", answer)
    async with (
        listening(app, "127.0.0.1", 0) as url,
        aiohttp.ClientSession(url) as opened,
    ):
        yield opened


def test_a_page_may_read_every_header_that_the_document_names() -> None:
    document = openapi_document("1.2.3")
    answers = [
        operation["responses"]["200"]
        for methods in document["paths"].values()
        for operation in methods.values()
    ]
    named = {
        name.lower()
        for answer in (*answers, *document["components"]["responses"].values())
        for name in answer["headers"]
    }
    assert named - {"www-authenticate"} == set(EXPOSED_HEADERS.split(", "))


async def test_a_page_may_ask_with_its_key_and_read_the_answer(
    session: aiohttp.ClientSession,
) -> None:
    async with session.options("/v1/chat/completions", headers=QUESTION) as may_i:
        assert may_i.status == 204
        assert may_i.headers["Access-Control-Allow-Origin"] == "*"
        assert may_i.headers["Access-Control-Allow-Methods"] == "POST"
        wanted = QUESTION["Access-Control-Request-Headers"]
        assert may_i.headers["Access-Control-Allow-Headers"] == wanted
    async with session.post("/v1/chat/completions", headers=PAGE) as answered:
        assert answered.headers["Access-Control-Allow-Origin"] == "*"
        assert "x-request-id" in answered.headers["Access-Control-Expose-Headers"]


@pytest.mark.parametrize("where", ["/v1/refused", "/v1/nothing", "/v1/chat/completions/"])
async def test_errors_can_be_read_by_a_page_as_well(
    session: aiohttp.ClientSession, where: str
) -> None:
    async with session.post(where, headers=PAGE) as refused:
        assert (refused.status, refused.headers["Access-Control-Allow-Origin"]) == (404, "*")


async def test_nobody_else_sees_any_of_it(session: aiohttp.ClientSession) -> None:
    async with session.post("/v1/chat/completions") as answered:
        assert "Access-Control-Allow-Origin" not in answered.headers
    async with session.options("/v1/chat/completions") as asked:
        assert asked.status == 405


async def test_no_page_may_call_the_admin_api(session: aiohttp.ClientSession) -> None:
    async with session.options("/admin/v1/secret", headers=QUESTION) as may_i:
        assert may_i.status == 405
        assert "Access-Control-Allow-Origin" not in may_i.headers
    async with session.post("/admin/v1/secret", headers=PAGE) as answered:
        assert "Access-Control-Allow-Origin" not in answered.headers


async def test_a_question_about_nothing_is_not_found(session: aiohttp.ClientSession) -> None:
    async with session.options("/v1/nothing", headers=QUESTION) as may_i:
        assert may_i.status == 404
