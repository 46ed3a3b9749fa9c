"""The Rebalance Directives of a Worker: long-polled, so that one arrives at once, and reported."""

import math

import msgspec
from aiohttp import web

from meshnet_common.edge.http import json_response, read_json_body
from meshnet_common.errors import MeshnetError
from meshnet_common.openai.errors import invalid_request
from meshnet_common.openai.json_body import decode_message
from meshnet_common.protocol.messages import Directive, DirectiveList, DirectiveReport
from meshnet_tracker.handlers.workers import shown_token
from meshnet_tracker.records import Poll, Reporting
from meshnet_tracker.services import Services
from meshnet_tracker.store.errors import UnknownDirectiveError
from meshnet_tracker.worker_rules import MAX_INTEGER, check_report, is_plain_id

MAX_WAIT_SECONDS = 60.0


class DirectiveHandlers:
    """`/v1/workers/{id}/directives` and below."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[web.RouteDef]:
        return [
            # allow_head: a HEAD request must not hold a poll of its own.
            web.get("/v1/workers/{worker_id}/directives", self.poll, allow_head=False),
            web.post("/v1/workers/{worker_id}/directives/{directive_id}", self.report),
        ]

    async def poll(self, request: web.Request) -> web.Response:
        services = self._services
        epoch = _epoch(request)
        wait_seconds = _wait_seconds(request, services.settings.directive_wait_seconds)
        poll = Poll(*shown_token(request), epoch)
        with services.directives.listen(poll.worker_id) as bell:
            found = await self._look(poll)
            if not found and wait_seconds and not services.directives.closed:
                await bell.wait(wait_seconds)
                found = (await services.calls.poll(poll)).directives
        return json_response(msgspec.json.encode(DirectiveList(directives=found)))

    async def report(self, request: web.Request) -> web.Response:
        services = self._services
        worker_id, token = shown_token(request)
        try:
            directive_id, report = await _read_report(request)
        except MeshnetError:
            # Whoever is not a Worker is told that first.
            await services.calls.authenticate(worker_id, token)
            raise
        state = await services.calls.report(Reporting(worker_id, token, directive_id, report))
        services.workers_changed()
        return json_response(msgspec.json.encode({"state": state}))

    async def _look(self, poll: Poll) -> tuple[Directive, ...]:
        services = self._services
        found = await services.calls.poll(poll)
        if not found.is_ahead or not await services.store.observe_epoch(poll.worker_id, poll.epoch):
            return found.directives
        services.mesh_changed()
        return (await services.calls.poll(poll)).directives


async def _read_report(request: web.Request) -> tuple[str, DirectiveReport]:
    """Read what is said of which directive; raises ApiError and UnknownDirectiveError."""
    report = decode_message(await read_json_body(request), DirectiveReport)
    check_report(report)
    directive_id = request.match_info["directive_id"]
    if not is_plain_id(directive_id):
        raise UnknownDirectiveError(directive_id)
    return directive_id, report


def _epoch(request: web.Request) -> int:
    text = request.query.get("after", "0")
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= MAX_INTEGER):
        raise invalid_request("`after` must be an epoch, a whole number.", "after")
    return int(text)


def _wait_seconds(request: web.Request, default: float) -> float:
    text = request.query.get("wait")
    try:
        seconds = default if text is None else float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise invalid_request("`wait` must be a number of seconds, not negative.", "wait")
    return min(seconds, MAX_WAIT_SECONDS)
