import dataclasses

import pytest

from tests.worker.builders import RecordingRoom


def test_a_room_is_furnished_once() -> None:
    room = RecordingRoom().room
    with pytest.raises(dataclasses.FrozenInstanceError):
        room.worker_id = "w9"  # type: ignore[misc, assignment]  # what must not be possible
