import asyncio

import pytest

from meshnet_common.ids import WorkerId
from meshnet_tracker.under_way import AnswersUnderWay, HeadLostError

LOST, OTHER = WorkerId("lost"), WorkerId("other")


async def answer(answers: AnswersUnderWay, head: WorkerId, end: asyncio.Event) -> str:
    async with answers.of_head(head):
        await end.wait()
    return "whole"


async def test_a_lost_head_ends_its_answers_and_no_other() -> None:
    answers, end = AnswersUnderWay(), asyncio.Event()
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        other = tasks.create_task(answer(answers, OTHER, end))
        asyncio.get_running_loop().call_soon(answers.cut, LOST)
        with pytest.raises(HeadLostError, match="lost"):
            await answer(answers, LOST, end)
        end.set()
    assert other.result() == "whole"


async def test_a_head_without_answers_is_cut_in_vain() -> None:
    answers = AnswersUnderWay()
    async with answers.of_head(LOST):
        pass
    answers.cut(LOST)
