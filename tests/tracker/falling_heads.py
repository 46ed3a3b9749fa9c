"""Head Workers that fall over what they are asked, or say that they do."""

from aiohttp import web

from meshnet_common.openai.sse import DONE_EVENT, noted_event
from meshnet_common.protocol.notes import (
    BLAMED_NOTE,
    FELLED_NOTE,
    MOVED_NOTE,
    alive_note,
    failed_note,
)
from tests.tracker.heads import Behaviour, FakeHead, begun, dies_before_it_answers


def falls_over(behaviour: Behaviour) -> Behaviour:
    """Be gone for whoever asks after it from then on."""

    async def falls(head: FakeHead, request: web.Request) -> web.StreamResponse:
        head.is_well = False
        return await behaviour(head, request)

    return falls


def in_line_until_it_dies(ahead: int) -> Behaviour:
    """Let so many others go first, and then break off."""

    async def dies(head: FakeHead, request: web.Request) -> web.StreamResponse:
        response = await begun(head, request, 1)
        await response.write(noted_event([alive_note(ahead)]))
        return await dies_before_it_answers(head, request)

    return dies


def loses_its_engine_after(blocks: int) -> Behaviour:
    """Ask to go on elsewhere, for that reason."""

    async def loses(head: FakeHead, request: web.Request) -> web.StreamResponse:
        response = await begun(head, request, blocks)
        await response.write(noted_event([MOVED_NOTE, FELLED_NOTE]))
        return response

    return loses


async def blames_the_request(head: FakeHead, request: web.Request) -> web.StreamResponse:
    """Tell that it fails wherever it runs."""
    response = await begun(head, request, 1)
    note = failed_note(502, None)
    await response.write(noted_event([note, BLAMED_NOTE], b'{"error":{}}') + DONE_EVENT)
    return response
