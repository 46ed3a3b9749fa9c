import pytest
from structlog.testing import capture_logs

from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine_port import LayersLoaded
from meshnet_worker.layer_loads import compare_sizes, load_command
from tests.worker.builders import local_shard

BYTES = 100 + 101


@pytest.mark.parametrize(
    ("measured", "warnings"), [(BYTES, 0), (BYTES + 1, 0), (2 * BYTES, 1), (BYTES // 2, 1)]
)
def test_a_size_that_is_far_from_the_presets_is_a_warning(measured: int, warnings: int) -> None:
    loaded = LayersLoaded(shard=0, start=0, end=2, hidden_size=8, layer_bytes=measured)
    with capture_logs() as logs:
        compare_sizes(local_shard(), loaded)
    # Whether less is told at all depends on how logs are set up.
    assert [entry["log_level"] for entry in logs].count("warning") == warnings


def test_the_engine_is_told_which_layers_of_which_shard() -> None:
    command = load_command(local_shard(), ShardRange(1, 3))
    assert (command.shard, command.folder, command.start, command.end) == (0, "folder", 1, 3)
