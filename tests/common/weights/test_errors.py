from meshnet_common.weights.errors import CheckpointError, HeaderError


def test_an_error_says_what_is_wrong_and_then_the_facts() -> None:
    error = HeaderError("x.safetensors: It has 3 bytes.")
    assert str(error).endswith("header. x.safetensors: It has 3 bytes.")


def test_a_bad_checkpoint_ends_a_command_with_status_three() -> None:
    assert CheckpointError.exit_status == 3
