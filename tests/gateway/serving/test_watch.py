from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from meshnet_common.edge.serving import listening
from meshnet_gateway.config.settings import Secret
from meshnet_gateway.serving.endpoint_state import EndpointState, Listing
from tests.common.edge.upstreams import LOOPBACK, NOBODY, Script, hang_up, whole
from tests.gateway.fake_endpoint import fake_endpoint
from tests.gateway.running import Running, endpoint, model, running, settings, until


def state(one: Running) -> EndpointState:
    return next(iter(one.services.registry.configured[0]))


@asynccontextmanager
async def listing_as(script: Script) -> AsyncIterator[tuple[str, list[Script]]]:
    """Answer looks by the last of these scripts."""
    scripts = [script]

    async def lists(request: web.Request) -> web.StreamResponse:
        return await scripts[-1](request)

    app = web.Application()
    app.router.add_get("/v1/models", lists)
    async with listening(app, LOOPBACK, 0) as url:
        yield url, scripts


async def test_an_endpoint_is_asked_what_it_serves_with_its_own_key() -> None:
    async with fake_endpoint(models=["smol"]) as fake:
        known = settings(models=(model(endpoint(fake.url, api_key=Secret("k"))),))
        with capture_logs() as logs:
            async with running(known) as one:
                assert state(one).listing is Listing.LISTED
                fake.models = ["other"]
                await one.services.watch.look_round()
                assert state(one).listing is Listing.SWAPPED

    assert {look.headers["Authorization"] for look in fake.looks} == {"Bearer k"}
    assert [log["listing"] for log in logs if "listing" in log] == ["listed", "swapped"]


async def test_one_that_is_not_there_is_not_resident() -> None:
    with capture_logs():
        async with running(settings(models=(model(endpoint(NOBODY)),))) as one:
            assert state(one).listing is Listing.UNREACHABLE


async def test_one_without_a_list_is_taken_at_its_word() -> None:
    async with (
        fake_endpoint() as fake,
        running(settings(models=(model(endpoint(fake.url)),))) as one,
    ):
        assert state(one).listing is Listing.UNKNOWN


@pytest.mark.parametrize(
    ("script", "listing"),
    [
        (whole(b"{}", 404), Listing.UNKNOWN),
        (whole(b"<html>"), Listing.UNKNOWN),
        (whole(b'{"data": []}'), Listing.UNKNOWN),
        (whole(b'{"data": [{"id": "smol"}]}'), Listing.LISTED),
        (whole(b"", 500), Listing.UNREACHABLE),
        (hang_up, Listing.UNREACHABLE),
    ],
)
async def test_one_that_could_not_be_reached_is_there_again_whatever_it_lists(
    script: Script, listing: Listing
) -> None:
    async with listing_as(hang_up) as (url, scripts):
        with capture_logs():
            async with running(settings(models=(model(endpoint(url)),))) as one:
                assert state(one).listing is Listing.UNREACHABLE
                scripts.append(script)
                await one.services.watch.look_round()
                assert state(one).listing is listing


@pytest.mark.parametrize(("waiting", "overloads"), [(0, 0), (3, 1)])
async def test_requests_that_wait_over_there_narrow_the_limit(waiting: int, overloads: int) -> None:
    page = f'vllm:num_requests_waiting{{model_name="smol"}} {waiting}\n'
    async with fake_endpoint(metrics=page) as fake:
        one_endpoint = endpoint(fake.url, metrics_url=f"{fake.url}/metrics")
        async with running(settings(models=(model(one_endpoint),))) as one:
            load = state(one).load
            assert load is not None
            assert load.waiting == waiting
            assert state(one).limit.facts.overloads == overloads


async def test_metrics_that_are_none_change_nothing() -> None:
    async with fake_endpoint(metrics="<html>") as fake:
        one_endpoint = endpoint(fake.url, metrics_url=f"{fake.url}/metrics")
        with capture_logs() as logs:
            async with running(settings(models=(model(one_endpoint),))) as one:
                assert state(one).load is None

    assert "metrics unreadable" in [log["event"] for log in logs]


async def test_whatever_a_page_does_the_others_are_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_page: str, _model: str) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("meshnet_gateway.serving.watch.read_load", fail)
    monkeypatch.setattr("meshnet_gateway.serving.watch.WATCH_SECONDS", 0.001)
    async with fake_endpoint(models=["smol"]) as fake:
        one_endpoint = endpoint(fake.url, metrics_url=f"{fake.url}/metrics")
        with capture_logs():
            async with running(settings(models=(model(one_endpoint),)), watched=False):
                await until(lambda: len(fake.looks) >= 3)
