import asyncio

from meshnet_common.ids import WorkerId
from meshnet_tracker.bells import Bell, Chime, DirectiveBells

W1, W2 = WorkerId("w1"), WorkerId("w2")


async def test_a_ring_before_the_wait_is_kept_and_many_count_as_one() -> None:
    bell = Bell()
    bell.ring()
    bell.ring()
    async with asyncio.timeout(5):
        await bell.wait(60)
    assert not bell.is_rung


async def test_a_wait_without_a_ring_ends_by_itself() -> None:
    async with asyncio.timeout(5):
        await Bell().wait(0.01)


async def test_a_worker_is_woken_by_its_own_bell_only() -> None:
    bells = DirectiveBells()
    with bells.listen(W1) as first, bells.listen(W2) as second:
        bells.ring([W1])
        assert (first.is_rung, second.is_rung) == (True, False)


async def test_both_polls_of_a_reconnected_worker_are_woken() -> None:
    bells = DirectiveBells()
    with bells.listen(W1) as old, bells.listen(W1) as new:
        bells.ring([W1, W2])
        assert old.is_rung
        assert new.is_rung


async def test_a_poll_that_ended_leaves_nothing_behind() -> None:
    bells = DirectiveBells()
    with bells.listen(W1):
        assert bells.has_listeners
    assert not bells.has_listeners


async def test_closing_wakes_everybody() -> None:
    bells = DirectiveBells()
    with bells.listen(W1) as first, bells.listen(W2) as second:
        bells.close()
        assert first.is_rung
        assert second.is_rung
    assert bells.closed


async def test_a_chime_wakes_all_who_wait_and_is_not_kept() -> None:
    chime = Chime()
    chime.strike()
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(chime.wait(60))
        asyncio.get_running_loop().call_soon(chime.strike)


async def test_a_chime_that_is_not_struck_is_waited_for_only_so_long() -> None:
    async with asyncio.timeout(5):
        await Chime().wait(0.01)
