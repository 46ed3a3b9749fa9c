from pathlib import Path

import pytest

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import RoundTrip
from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine_port import BATCH_TOKENS, DeviceProbed, LayersMeasured
from meshnet_worker.measures import Held, Measures, Place, Seen
from meshnet_worker.options import ShareOfVram, WorkerOptions
from meshnet_worker.speeds import SLOWDOWN
from tests.worker.builders import RecordingRoom

PROBED = DeviceProbed(
    device="cpu",
    name="CPU",
    quantizations=("float32",),
    free_bytes=8000,
    total_bytes=9000,
    block_positions=16,
    scratch_blocks=1,
    tokens_per_second=7.0,
    prefill_tokens_per_second=70.0,
    memory_bytes_per_second=1e9,
    seconds=1.0,
    benchmark_model="layer",
)


def options() -> WorkerOptions:
    return WorkerOptions(
        tracker_urls=("http://127.0.0.1:1",),
        vram=ShareOfVram(0.25),
        host="127.0.0.1",
        port=0,
        advertised_url=None,
        device="cpu",
        threads=1,
        tracker_mode=True,
        state_folder=Path("state"),
        ready_file=None,
        chunk_tokens=4,
        weights_folder=Path("weights"),
        region="eu",
    )


def measures(room: RecordingRoom) -> Measures:
    return Measures(options(), WorkerId("w0"), Held(room.shards, room.sessions, room.kv))


def test_a_probed_device_is_lent_as_its_volunteer_chose() -> None:
    room = RecordingRoom()
    measures(room).on_probed(PROBED)
    assert (room.kv.budget_bytes, room.kv.block_positions) == (2000, 16)
    assert room.kv.scratch_blocks == 1


def test_a_registration_offers_what_was_probed() -> None:
    room = RecordingRoom()
    told = measures(room)
    told.on_probed(PROBED)
    told.place, told.speeds.link_bytes_per_second = Place("http://here", PROBED), 5e6
    body = told.registration()
    assert (body.worker_id, body.url) == ("w0", "http://here")
    offered = body.capabilities
    assert (offered.vram_bytes, offered.starts_at_zero) == (2000, True)
    assert offered.region == "eu"
    assert offered.decode_tokens_per_sec_per_layer == offered.benchmark_tokens_per_sec == 7.0
    assert (offered.prefill_tokens_per_sec_per_layer, offered.link_bytes_per_sec) == (70.0, 5e6)


def test_a_heartbeat_tells_what_is_served_and_how_fast() -> None:
    room = RecordingRoom(ready=(0, 4))
    told = measures(room)
    assert told.heartbeat(0).speeds_of == ""
    assert told.on_measured(LayersMeasured(0, 40.0, 400.0))
    body = told.heartbeat(9)
    assert [shard.shard_range for shard in body.shards] == [ShardRange(0, 4)]
    assert (body.directive_epoch, body.sessions) == (9, 0)
    assert body.kv_bytes_free == room.kv.free_bytes
    assert (body.decode_tokens_per_sec_per_layer, body.speeds_of) == (40.0, "tiny")
    assert body.prefill_tokens_per_sec_per_layer == 400.0


def test_a_heartbeat_tells_what_waits_and_who_is_near() -> None:
    told = measures(RecordingRoom())
    told.speeds.download_bytes_per_second = 5e6
    trips = (RoundTrip(worker_id="w1", seconds=0.5),)
    body = told.heartbeat(0, Seen(queued=3, round_trips=trips))
    assert (body.queued, body.download_bytes_per_sec, body.round_trips) == (3, 5e6, trips)


def test_layers_that_are_gone_or_cannot_be_measured_are_no_news() -> None:
    told = measures(RecordingRoom())
    assert not told.on_measured(LayersMeasured(7, 40.0, 400.0))
    assert not told.on_measured(LayersMeasured(0, 0.0, 0.0))
    assert told.speeds.speeds_of == ""


def test_what_a_slow_batch_may_take_grows_with_the_layers() -> None:
    told = measures(RecordingRoom(ready=(0, 4)))
    told.on_measured(LayersMeasured(0, 40.0, 400.0))
    assert told.slow_batch_seconds() == pytest.approx(SLOWDOWN * BATCH_TOKENS * 4 / 400)


def test_a_heartbeat_says_that_its_worker_leaves() -> None:
    room = RecordingRoom(ready=(0, 4))
    told = measures(room)
    assert not told.heartbeat(0).leaving
    room.shards.leaving = True
    assert told.heartbeat(0).leaving
