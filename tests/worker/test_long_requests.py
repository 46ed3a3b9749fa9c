import pytest

from meshnet_common.openai.apis import CHAT
from tests.common.edge.threads import noted_threads
from tests.worker.chatting import Serve


@pytest.mark.parametrize(("words", "is_beside"), [(1, False), (10_000, True)])
async def test_a_long_body_is_parsed_beside_the_event_loop(
    words: int, is_beside: bool, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = noted_threads(monkeypatch)
    async with serve(1) as client:
        await client.chat("w1 " * words, max_tokens=1)
    assert (CHAT.parse in beside) == is_beside


async def test_a_prompt_that_is_clearly_too_long_is_refused_by_its_beginning(serve: Serve) -> None:
    async with serve() as client:
        answer = await client.chat("w1 " * 500_000)
        assert (answer.status, answer.code) == (400, "context_length_exceeded")
        assert "at least" in answer.json["error"]["message"]
        assert answer.json["error"]["n_prompt_tokens"] < 500_000
        assert client.route.sent == []
