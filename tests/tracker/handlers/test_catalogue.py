from dataclasses import replace
from urllib.parse import quote

import msgspec
import pytest

from meshnet_common.ids import PresetName
from meshnet_common.presets import ModelPreset
from meshnet_tracker import public_names, view
from meshnet_tracker.planning.snapshot import VariantKey
from tests.tracker.builders import NOW, preset, shard
from tests.tracker.running import RunningTracker, shards_of_all
from tests.weights import checkpoint, manifest_of

WHOLE = [{"start_layer": 0, "end_layer": 6, "worker_count": 1}]


@pytest.fixture
def kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a Tracker has read of models and names counts until it is told of a change."""
    monkeypatch.setattr(view, "FRESH_SECONDS", 3600.0)
    monkeypatch.setattr(view, "KEEP_WARM_SECONDS", 3600.0)
    monkeypatch.setattr(public_names, "FRESH_SECONDS", 3600.0)


async def test_only_servable_variants_are_listed_with_their_coverage(
    tracker: RunningTracker,
) -> None:
    assert (await tracker.get("/v1/models")).json == {"object": "list", "data": []}
    for number, run in enumerate(shards_of_all(3)):
        await tracker.serve(f"w{number}", f"http://127.0.0.1:{number + 1}", run)
    (model,) = (await tracker.get("/v1/models")).json["data"]
    assert (await tracker.get("/models")).json["data"] == [model]
    assert (await tracker.get("/models/tiny")).json == model
    assert (model["id"], model["object"], model["created"]) == ("tiny", "model", int(NOW))
    assert model["max_model_len"] == 256
    assert model["meshnet"]["coverage"] == WHOLE


async def test_one_model_can_be_asked_for(tracker: RunningTracker) -> None:
    await tracker.serve("w1", "http://127.0.0.1:1", shard(0, 6))
    assert (await tracker.get("/v1/models/tiny")).json["id"] == "tiny"


async def test_a_model_that_is_not_served_now_is_not_found(tracker: RunningTracker) -> None:
    for name in ("tiny", "nothing"):
        reply = await tracker.get(f"/v1/models/{name}")
        assert (reply.status, reply.error["code"]) == (404, "model_not_found")


async def test_a_name_may_have_a_slash_raw_or_encoded(tracker: RunningTracker) -> None:
    await tracker.store.add_preset(preset("org/other"), NOW)
    for name in ("org/other", quote("org/other", safe="")):
        answer = (await tracker.get(f"/v1/presets/{name}")).json
        assert answer["preset"]["name"] == "org/other"
        assert (await tracker.get(f"/v1/coverage/{name}")).status == 200


async def test_a_preset_is_found_by_any_of_its_public_names(empty_tracker: RunningTracker) -> None:
    await empty_tracker.store.add_preset(preset(quantizations=("bfloat16", "float32")), NOW)
    for name in ("tiny", "tiny-float32"):
        answer = (await empty_tracker.get(f"/v1/presets/{name}")).json
        assert answer["preset"]["default_quantization"] == "bfloat16"
    assert (await empty_tracker.get("/v1/presets/tiny-nf4")).status == 404


async def test_a_worker_gets_a_presets_manifest(empty_tracker: RunningTracker) -> None:
    manifest = manifest_of(checkpoint())
    record = preset()
    known = msgspec.structs.replace(record.preset, manifest=manifest)
    await empty_tracker.store.add_preset(replace(record, preset=known), NOW)
    answer = (await empty_tracker.get("/v1/presets/tiny")).json
    assert msgspec.convert(answer["preset"], ModelPreset) == known


async def test_the_coverage_map_shows_gaps(tracker: RunningTracker) -> None:
    await tracker.serve("w1", "http://127.0.0.1:1", shard(0, 2))
    await tracker.serve("w2", "http://127.0.0.1:2", shard(4, 6))
    assert (await tracker.get("/v1/coverage/tiny")).json == [
        {"start_layer": 0, "end_layer": 2, "worker_count": 1},
        {"start_layer": 2, "end_layer": 4, "worker_count": 0},
        {"start_layer": 4, "end_layer": 6, "worker_count": 1},
    ]


async def test_head_workers_are_those_with_layer_zero_ready(tracker: RunningTracker) -> None:
    await tracker.serve("w1", "http://127.0.0.1:1", shard(0, 3))
    await tracker.serve("w2", "http://127.0.0.1:2", shard(0, 6))
    await tracker.serve("w3", "http://127.0.0.1:3", shard(3, 6))
    expected = {"endpoints": ["http://127.0.0.1:1", "http://127.0.0.1:2"]}
    for where in ("head-workers", "tracker-nodes"):
        assert (await tracker.get(f"/v1/{where}/tiny")).json == expected


async def test_an_unknown_model_is_not_found_anywhere(tracker: RunningTracker) -> None:
    for where in ("presets", "coverage", "head-workers", "tracker-nodes", "route"):
        reply = await tracker.get(f"/v1/{where}/nothing")
        assert (reply.status, reply.error["code"]) == (404, "model_not_found")
        assert reply.headers["x-request-id"]


async def with_canary(tracker: RunningTracker) -> None:
    """Serve `tiny`, and `next` as its Canary."""
    canary = preset("next")
    await tracker.store.add_preset(replace(canary, is_canary=True), NOW)
    key = VariantKey("next", "bfloat16")
    await tracker.serve("w1", "http://127.0.0.1:1", shard(0, 6))
    await tracker.serve("w2", "http://127.0.0.1:2", shard(0, 6, model=key))


async def names_at(tracker: RunningTracker, where: str) -> list[str]:
    return [model["id"] for model in (await tracker.get(where)).json["data"]]


async def test_a_canary_is_listed_in_a_place_of_its_own(tracker: RunningTracker) -> None:
    await with_canary(tracker)
    assert await names_at(tracker, "/v1/models") == ["tiny"]
    assert await names_at(tracker, "/canary/v1/models") == ["next"]
    assert (await tracker.get("/v1/models/next")).status == 404
    assert (await tracker.get("/v1/coverage/next")).json == WHOLE
    assert (await tracker.get("/v1/presets/next")).status == 200


async def test_an_alias_is_listed_and_shown_as_what_it_stands_for(tracker: RunningTracker) -> None:
    await with_canary(tracker)
    await tracker.store.aliases.set("tiny", "next", NOW)
    tracker.services.mesh_changed()
    assert await names_at(tracker, "/v1/models") == ["tiny"]
    shown = (await tracker.get("/v1/models/tiny")).json
    assert (shown["id"], shown["meshnet"]["preset"]) == ("tiny", "next")
    # A Worker that loads `tiny` means the model of this name.
    assert (await tracker.get("/v1/presets/tiny")).json["preset"]["name"] == "tiny"
    heads = (await tracker.get("/v1/head-workers/tiny")).json
    assert heads == {"endpoints": ["http://127.0.0.1:2"]}


@pytest.mark.usefixtures("kept_for_ever")
async def test_a_model_that_a_command_has_just_added_is_known_everywhere(
    tracker: RunningTracker,
) -> None:
    assert (await tracker.get("/v1/coverage/tiny")).status == 200
    for name, alias in (("next", "chat"), ("org/other", "o")):
        await tracker.store.add_preset(preset(name), NOW)
        for where in ("presets", "coverage", "head-workers", "tracker-nodes"):
            assert (await tracker.get(f"/v1/{where}/{name}")).status == 200
        await tracker.store.aliases.set(alias, name, NOW)
        for where in ("presets", "coverage", "head-workers", "tracker-nodes"):
            assert (await tracker.get(f"/v1/{where}/{alias}")).status == 200
    reply = await tracker.get("/v1/route/chat")
    assert (reply.status, reply.error["code"]) == (503, "model_unavailable")


@pytest.mark.usefixtures("kept_for_ever")
async def test_a_canary_that_a_command_has_just_let_out_is_known(tracker: RunningTracker) -> None:
    await with_canary(tracker)
    assert (await tracker.get("/v1/models/next")).status == 404
    await tracker.store.remove_preset(PresetName("next"))
    await tracker.store.add_preset(preset("next"), NOW)
    assert (await tracker.get("/v1/models/next")).status == 200
