from meshnet_worker.kv_report import PoolReport, pool_reports
from tests.worker.builders import RecordingRoom, kv_request


def test_a_pool_is_reported_with_its_size_and_its_use() -> None:
    recording = RecordingRoom(kv_bytes=4000)
    recording.kv.reserve(kv_request(positions=7, layers=(1, 3)))
    assert pool_reports(recording.kv, recording.shards) == (
        PoolReport(
            model="tiny",
            quantization="float32",
            start_layer=0,
            end_layer=4,
            blocks=100,
            used=14,
        ),
    )


def test_a_shard_without_layers_has_no_pool() -> None:
    recording = RecordingRoom(ready=None)
    assert pool_reports(recording.kv, recording.shards) == ()
