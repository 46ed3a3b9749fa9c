"""Notes what is done beside the event loop."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

Work = Callable[..., Any]


def noted_threads(monkeypatch: pytest.MonkeyPatch) -> list[Work]:
    """Return a list to which every function is added that goes to a thread from now on."""
    beside: list[Work] = []
    to_thread = asyncio.to_thread

    async def noted(work: Work, *given: Any) -> Any:
        beside.append(work)
        return await to_thread(work, *given)

    monkeypatch.setattr(asyncio, "to_thread", noted)
    return beside
