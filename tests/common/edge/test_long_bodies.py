import threading

import pytest

from meshnet_common.edge.long_bodies import LONG_BODY_BYTES, parse_body
from meshnet_common.openai.errors import ApiError
from meshnet_common.openai.requests import parse_chat_request


@pytest.mark.parametrize(("size", "is_beside"), [(LONG_BODY_BYTES - 1, False), (4 << 20, True)])
async def test_long_bodies_are_parsed_beside_the_event_loop(size: int, is_beside: bool) -> None:
    def parse(body: bytes) -> tuple[int, threading.Thread]:
        return len(body), threading.current_thread()

    length, thread = await parse_body(parse, bytes(size))
    assert length == size
    assert (thread is not threading.current_thread()) == is_beside


@pytest.mark.parametrize("size", [10, LONG_BODY_BYTES])
async def test_a_fault_comes_out_as_it_is(size: int) -> None:
    with pytest.raises(ApiError) as refused:
        await parse_body(parse_chat_request, b"{" * size)
    assert refused.value.status == 400
