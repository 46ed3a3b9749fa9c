from meshnet_tracker.settings import TrackerSettings


def test_a_lost_worker_shows_within_fifteen_seconds_by_default() -> None:
    settings = TrackerSettings()
    assert settings.lost_after_seconds + 1 < 15
    assert settings.heartbeat_seconds * 2 < settings.lost_after_seconds
