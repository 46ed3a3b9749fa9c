"""Many streams at once, read with as little work as a client can do.

The official client parses every event; on the cores that the engines need, that would be measured
too. This one only looks for the events that carry text.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from bench.meshes import MODEL

TEXT_EVENT = b'"content":"'
SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Streams:
    """When the first token of any stream came and when the last stream ended, in seconds."""

    first: float
    ended: float
    tokens: int
    """Of all streams, without the first of each."""

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / (self.ended - self.first)


def run_streams(url: str, prompts: Sequence[str], new_tokens: int) -> Streams:
    """Stream answers of exactly `new_tokens` tokens to all prompts at once."""
    return asyncio.run(_run_streams(url, prompts, new_tokens))


def first_token_seconds(url: str, prompt: str) -> float:
    """How long a prompt takes to its first token."""
    started = time.perf_counter()
    return run_streams(url, [prompt], 1).first - started


async def _run_streams(url: str, prompts: Sequence[str], new_tokens: int) -> Streams:
    times: list[tuple[float, float]] = []
    timeout = aiohttp.ClientTimeout(total=SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as client, asyncio.TaskGroup() as tasks:
        for prompt in prompts:
            tasks.create_task(_stream(client, url, _body(prompt, new_tokens), times))
    first, ended = min(first for first, _ in times), max(ended for _, ended in times)
    return Streams(first, ended, len(prompts) * (new_tokens - 1))


async def _stream(
    client: aiohttp.ClientSession,
    url: str,
    body: dict[str, Any],
    times: list[tuple[float, float]],
) -> None:
    first = 0.0
    async with client.post(f"{url}/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if not first and TEXT_EVENT in line:
                first = time.perf_counter()
    times.append((first, time.perf_counter()))


def _body(prompt: str, new_tokens: int) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": new_tokens,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
    }
