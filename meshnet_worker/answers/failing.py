"""How a failed generation looks to who asked for it."""

from meshnet_common.errors import MeshnetError
from meshnet_common.openai import errors
from meshnet_common.openai.errors import INVALID_REQUEST, ApiError, ContextLengthBody
from meshnet_common.protocol.bodies import KvFigures
from meshnet_worker.answers.answer import Answer
from meshnet_worker.head_session import (
    HopFailedError,
    NoRoomError,
    RouteLostError,
    RouteSilentError,
)

RETRY_AFTER_SECONDS = 5

ROUTE_ERRORS = (HopFailedError, NoRoomError, RouteSilentError, RouteLostError)
"""What a generation's tokens raise."""


def before_commit(error: MeshnetError, answer: Answer) -> ApiError:
    """What a client sees when the Route failed before any of the answer went out."""
    if isinstance(error, HopFailedError) and error.kv is not None:
        return _beyond_capacity(error.kv, answer)
    if isinstance(error, NoRoomError):
        return errors.overloaded(str(error), RETRY_AFTER_SECONDS)
    if isinstance(error, RouteLostError):
        return errors.model_unavailable(str(error), RETRY_AFTER_SECONDS)
    return errors.upstream_failed(str(error))


def in_the_middle(error: MeshnetError, answer: Answer) -> ApiError:
    """What a client sees in its stream once that has begun."""
    if answer.token_ids and not isinstance(error, NoRoomError):
        return errors.worker_lost(str(error))
    return before_commit(error, answer)


def _beyond_capacity(kv: KvFigures, answer: Answer) -> ApiError:
    prompt_tokens = len(answer.generation.prompt_ids)
    message = (
        f"The prompt has {prompt_tokens} tokens, but the memory lent for this model holds "
        f"{kv.capacity}: {kv.needed} KV blocks are needed, {kv.free} of {kv.total} are free. "
        "Shorten the messages."
    )
    code = "context_length_exceeded"
    figures = {"n_prompt_tokens": prompt_tokens, "n_ctx": kv.capacity}
    return ApiError(400, ContextLengthBody(message, INVALID_REQUEST, "messages", code, **figures))
