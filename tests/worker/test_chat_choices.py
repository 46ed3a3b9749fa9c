"""Several choices, and how likely their tokens were, as a client of a Head Worker sees them."""

from typing import Any

import pytest

from meshnet_common.protocol.resume import TOKEN_IDS_HEADER
from meshnet_common.protocol.sampling import TokenLogprobs
from meshnet_common.protocol.tickets import TICKET_HEADER
from tests.common.builders import ticket, token_of
from tests.worker.chatting import Serve
from tests.worker.models import END_ID
from tests.worker.waiting import ending_tasks

CHANCE: dict[str, Any] = {"temperature": 1.0, "seed": 2**63 - 2}


@pytest.mark.parametrize("stream", [False, True])
async def test_every_choice_is_a_session_of_its_own(stream: bool, serve: Serve) -> None:
    async with serve(1, 2, 3) as client:
        client.route.others = [[4, END_ID], [5, 6, 7]]
        answer = await client.chat(n=3, max_tokens=3, stream=stream, **CHANCE)
        assert answer.status == 200, answer.body
        assert answer.choices == [("w1 w2 w3", "length"), ("w4", "stop"), ("w5 w6 w7", "length")]
        # Each has a seed of its own, of 64 bits, and the prompt to itself.
        seeds = [sampling.seed for sampling in client.route.samplings]
        assert seeds == [2**63 - 2, 2**63 - 1, -(2**63)]
        assert client.route.closed == {"s1", "s1.1", "s1.2"}


async def test_usage_counts_all_choices_and_the_prompt_once(serve: Serve) -> None:
    async with serve(1, 2) as client:
        client.route.others = [[4, END_ID]]
        answer = await client.chat(n=2, max_tokens=2, **CHANCE)
        assert answer.json["usage"] == {
            "prompt_tokens": 3,
            "completion_tokens": 4,
            "total_tokens": 7,
        }


async def test_a_choice_that_has_ended_leaves_while_the_others_go_on(serve: Serve) -> None:
    async with serve(1, wait_seconds=60) as client:
        client.route.others = [[4, 5, 6]]
        async with ending_tasks() as tasks:
            tasks.create_task(client.chat(n=2, stop=["w5"], stream=True, **CHANCE))
            await client.route.changes.until(lambda: client.route.closed == {"s1.1"})
            assert len(client.route.heads) == 1


async def test_a_client_that_leaves_closes_all_choices(serve: Serve) -> None:
    async with serve(1) as client:
        client.route.others = [[2], [3]]
        async with ending_tasks() as tasks:
            tasks.create_task(client.chat(n=3, stream=True, **CHANCE))
            await client.route.changes.until(lambda: not client.route.others[1])
        await client.route.changes.until(lambda: client.route.closed == {"s1", "s1.1", "s1.2"})


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_come_with_the_text(stream: bool, serve: Serve) -> None:
    async with serve(1, 2) as client:
        client.route.likely = {1: TokenLogprobs(-0.5, ((1, -0.5), (END_ID, -1.5)))}
        answer = await client.chat(max_tokens=2, logprobs=True, top_logprobs=2, stream=stream)
        tokens = answer.logprobs
        assert [token["token"] for token in tokens] == ["w1", " w2"]
        assert [token["logprob"] for token in tokens] == [-0.5, -9999.0]
        assert [bytes(token["bytes"]) for token in tokens] == [b"w1", b" w2"]
        assert [top["logprob"] for top in tokens[0]["top_logprobs"]] == [-0.5, -1.5]
        assert client.route.samplings[0].logprobs == 2


async def test_without_others_only_the_tokens_themselves_are_told(serve: Serve) -> None:
    async with serve(1) as client:
        answer = await client.chat(max_tokens=1, logprobs=True, top_logprobs=0)
        assert [token["top_logprobs"] for token in answer.logprobs] == [[]]
        assert client.route.samplings[0].logprobs == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("token_ids", [{}, {TOKEN_IDS_HEADER: "1"}], ids=["client", "tracker"])
async def test_a_bias_of_what_is_no_token_is_a_400_before_anything_is_opened(
    token_ids: dict[str, str], stream: bool, serve: Serve
) -> None:
    async with serve(1) as client:
        headers = {TICKET_HEADER: token_of(ticket()), **token_ids}
        answer = await client.chat(logit_bias={"128": 1}, stream=stream, headers=headers)
        if token_ids:
            assert b": failed 400" in answer.body
        else:
            assert (answer.status, answer.json["error"]["param"]) == (400, "logit_bias")
        assert b"logit_bias" in answer.body
        assert client.route.sent == []
