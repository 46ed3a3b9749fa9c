"""A new version of a model: checked under a URL of its own, cut over to, and taken back."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from meshnet_tracker.planning.snapshot import VariantKey
from tests.tracker import heads
from tests.tracker.builders import NOW, preset, shard
from tests.tracker.heads import FakeHead, running_head
from tests.tracker.running import CHAT, Reply, RunningTracker

PUBLIC, CANARY = "/v1/chat/completions", "/canary/v1/chat/completions"


@asynccontextmanager
async def two_versions(tracker: RunningTracker) -> AsyncIterator[tuple[FakeHead, FakeHead]]:
    """Serve `tiny`, and `next` as its Canary, each by a Worker of its own."""
    await tracker.store.add_preset(replace(preset("next"), is_canary=True), NOW)
    async with running_head(heads.streams) as old, running_head(heads.streams) as new:
        await tracker.serve("w1", old.url, shard(0, 6))
        await tracker.serve("w2", new.url, shard(0, 6, model=VariantKey("next", "bfloat16")))
        yield old, new


async def ask(tracker: RunningTracker, name: str, where: str = PUBLIC) -> Reply:
    return await tracker.post(where, {**CHAT, "model": name})


async def test_a_canary_answers_at_its_own_url_only(tracker: RunningTracker) -> None:
    async with two_versions(tracker) as (old, new):
        assert (await ask(tracker, "next")).error["code"] == "model_not_found"
        assert (await ask(tracker, "tiny", CANARY)).error["code"] == "model_not_found"
        assert (len(old.bodies), len(new.bodies)) == (0, 0)
        assert (await ask(tracker, "next", CANARY)).status == 200
        assert (await ask(tracker, "tiny")).status == 200
        assert (len(old.bodies), len(new.bodies)) == (1, 1)


async def test_a_cut_over_and_a_rollback_move_all_that_is_asked_from_then_on(
    tracker: RunningTracker,
) -> None:
    aliases, asked = tracker.store.aliases, []
    async with two_versions(tracker) as (old, new):
        for change in (
            aliases.set("chat", "tiny", NOW),
            aliases.set("chat", "next", NOW),
            aliases.roll_back("chat", NOW),
        ):
            await change
            tracker.services.mesh_changed()
            assert (await ask(tracker, "chat")).status == 200
            asked.append((len(old.bodies), len(new.bodies)))
    assert asked == [(1, 0), (1, 1), (2, 1)]


async def test_the_head_worker_gets_the_name_that_the_client_asked_for(
    tracker: RunningTracker,
) -> None:
    async with two_versions(tracker) as (_, new):
        await tracker.store.aliases.set("chat", "next", NOW)
        tracker.services.mesh_changed()
        await ask(tracker, "chat")
    assert json.loads(new.bodies[0])["model"] == "chat"
