"""Many streams at once, read with as little work as a client can do.

The official client parses every event; on the cores that the engines need, that would be measured
too. This one only looks for the events that carry text.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
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
    texts: list[str]
    """What each stream said, in the order of the prompts."""

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
    heard = [_Heard() for _ in prompts]
    timeout = aiohttp.ClientTimeout(total=SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as client, asyncio.TaskGroup() as tasks:
        for prompt, one in zip(prompts, heard, strict=True):
            tasks.create_task(_stream(client, url, _body(prompt, new_tokens), one))
    first, ended = min(one.first for one in heard), max(one.ended for one in heard)
    texts = [_text(one.lines) for one in heard]
    return Streams(first, ended, len(prompts) * (new_tokens - 1), texts)


async def _stream(
    client: aiohttp.ClientSession,
    url: str,
    body: dict[str, Any],
    heard: "_Heard",
) -> None:
    async with client.post(f"{url}/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if TEXT_EVENT in line:
                heard.first = heard.first or time.perf_counter()
                heard.lines.append(line)
    heard.ended = time.perf_counter()


@dataclass(slots=True)
class _Heard:
    """One stream: its events with text, and when the first came and the last."""

    first: float = 0.0
    ended: float = 0.0
    lines: list[bytes] = field(default_factory=list)


def _text(lines: Sequence[bytes]) -> str:
    events = [json.loads(line.removeprefix(b"data: ")) for line in lines]
    return "".join(event["choices"][0]["delta"]["content"] for event in events)


def _body(prompt: str, new_tokens: int) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": new_tokens,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
    }
