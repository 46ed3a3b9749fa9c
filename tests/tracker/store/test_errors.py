from meshnet_tracker.store.errors import (
    DatabaseUnavailableError,
    NewerSchemaError,
    PresetExistsError,
    UnknownPresetError,
)


def test_what_an_operator_must_put_right_ends_with_status_three() -> None:
    for error in (
        NewerSchemaError,
        DatabaseUnavailableError,
        PresetExistsError,
        UnknownPresetError,
    ):
        assert error("facts").exit_status == 3
