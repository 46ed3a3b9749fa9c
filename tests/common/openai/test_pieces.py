from typing import get_args

from openai.types.chat.chat_completion import Choice
from openai.types.chat.chat_completion_token_logprob import (
    ChatCompletionTokenLogprob,
)
from openai.types.chat.chat_completion_token_logprob import (
    TopLogprob as OfficialTopLogprob,
)

from meshnet_common.openai.pieces import FinishReason, TokenLogprob, TopLogprob


def test_every_reason_to_end_is_one_that_official_clients_know() -> None:
    known = get_args(Choice.model_fields["finish_reason"].annotation)
    assert set(FinishReason) <= set(known)


def test_log_probabilities_have_the_official_fields() -> None:
    assert set(TokenLogprob.__struct_fields__) == set(ChatCompletionTokenLogprob.model_fields)
    assert set(TopLogprob.__struct_fields__) == set(OfficialTopLogprob.model_fields)
