import pytest
from structlog.testing import capture_logs

from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine_port import LayersLoaded
from meshnet_worker.layer_loads import compare_sizes, load_command
from tests.worker.builders import local_shard

BYTES = 100 + 101


@pytest.mark.parametrize(
    ("measured", "level"), [(BYTES, "debug"), (2 * BYTES, "warning"), (BYTES // 2, "warning")]
)
def test_a_size_that_is_far_from_the_presets_is_a_warning(measured: int, level: str) -> None:
    loaded = LayersLoaded(shard=0, start=0, end=2, hidden_size=8, layer_bytes=measured)
    with capture_logs() as logs:
        compare_sizes(local_shard(), loaded)
    assert [entry["log_level"] for entry in logs] == [level]


def test_the_engine_is_told_which_layers_of_which_shard() -> None:
    command = load_command(local_shard(), ShardRange(1, 3))
    assert (command.shard, command.folder, command.start, command.end) == (0, "folder", 1, 3)
