from tests.tracker.builders import NOW
from tests.tracker.running import RunningTracker


async def test_a_load_with_progress_gets_the_whole_deadline_again(
    tracker: RunningTracker,
) -> None:
    tracker.clock.advance(50)
    assert tracker.services.load_deadline() == NOW + 50 + 600
