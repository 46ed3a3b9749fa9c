from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from meshnet_common.openai.apis import CHAT, COMPLETIONS, RESPONSES
from meshnet_common.openai.embeddings import parse_embedding_request
from tests.common.edge.threads import noted_threads
from tests.tracker.running import RunningTracker

MESSAGES = {"messages": [{"role": "user", "content": "w"}]}


@pytest.mark.parametrize(
    ("path", "fields", "parse"),
    [
        *((path, MESSAGES, CHAT.parse) for path in (*CHAT.url_paths, *CHAT.counting_paths)),
        *((path, {"prompt": "w"}, COMPLETIONS.parse) for path in COMPLETIONS.url_paths),
        *((path, {"input": "w"}, RESPONSES.parse) for path in RESPONSES.url_paths),
        ("/v1/embeddings", {"input": "w"}, parse_embedding_request),
    ],
)
@pytest.mark.parametrize("is_long", [False, True])
async def test_a_long_body_is_parsed_beside_the_event_loop(
    path: str,
    fields: dict[str, Any],
    parse: Callable[..., Any],
    is_long: bool,
    tracker: RunningTracker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    beside = noted_threads(monkeypatch)
    user = "u" * (20_000 if is_long else 1)
    await tracker.post(path, {"model": "nobody has it", "user": user, **fields})
    parsed = [work.args[0] for work in beside if isinstance(work, partial)]
    assert parsed == ([parse] if is_long else [])
