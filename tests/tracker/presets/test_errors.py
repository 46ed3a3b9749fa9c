from meshnet_tracker.presets.errors import NoCheckpointError, PresetNameError


def test_an_operators_mistake_ends_a_command_with_status_three() -> None:
    assert NoCheckpointError.exit_status == PresetNameError.exit_status == 3
