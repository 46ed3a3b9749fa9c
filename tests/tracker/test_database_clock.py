import pytest

from meshnet_common.edge.clock import ManualClock
from meshnet_tracker.database_clock import DatabaseClock
from meshnet_tracker.store.store import Store


class SlowClock(ManualClock):
    """Goes on by so much whenever somebody looks."""

    def __init__(self, seconds: float) -> None:
        super().__init__(0.0)
        self.step = seconds

    def now(self) -> float:
        self.advance(self.step)
        return super().now()


async def test_it_tells_the_databases_time_and_goes_on_by_the_steady_clock(store: Store) -> None:
    steady = ManualClock(5.0)
    clock = DatabaseClock(store, steady)
    before = await store.clock.now()
    await clock.set()
    assert before <= clock.now() <= await store.clock.now()
    first = clock.now()
    steady.advance(20)
    assert clock.now() == pytest.approx(first + 20)


async def test_it_is_set_anew_when_the_database_says_otherwise(store: Store) -> None:
    steady = ManualClock(5.0)
    clock = DatabaseClock(store, steady)
    await clock.set()
    steady.advance(3600)
    await clock.set()
    assert clock.now() == pytest.approx(await store.clock.now(), abs=5)


async def test_an_answer_that_took_long_is_no_reason_to_change_it(store: Store) -> None:
    steady = SlowClock(0.0)
    clock = DatabaseClock(store, steady)
    await clock.set()
    steady.advance(3600)
    ahead = clock.now()
    steady.step = 1.0
    await clock.set()
    steady.step = 0.0
    assert clock.now() == pytest.approx(ahead + 2)


def test_it_tells_nothing_before_it_was_set(store: Store) -> None:
    with pytest.raises(RuntimeError):
        DatabaseClock(store, ManualClock(0.0)).now()
