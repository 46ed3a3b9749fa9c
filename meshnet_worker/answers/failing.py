"""How a failed generation looks to who asked for it."""

import structlog

from meshnet_common.errors import MeshnetError, TicketError
from meshnet_common.openai import errors
from meshnet_common.openai.errors import ApiError
from meshnet_common.protocol.bodies import KvFigures
from meshnet_worker.answers.answer import Answer
from meshnet_worker.engine_port import GRAMMAR_FAILED
from meshnet_worker.head_session import (
    BlamedError,
    HopFailedError,
    NoRoomError,
    RouteLostError,
    RouteSilentError,
)
from meshnet_worker.text.grammars import cannot_be_followed

RETRY_AFTER_SECONDS = 5

ROUTE_ERRORS = (HopFailedError, NoRoomError, RouteSilentError, RouteLostError)
"""How a generation fails."""

log = structlog.get_logger()


def told_error(error: MeshnetError, answer: Answer | None) -> ApiError:
    """What is told of a failure once the headers of an answer are out."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, TicketError):
        return errors.forbidden(str(error), "invalid_ticket")
    if answer is not None and isinstance(error, ROUTE_ERRORS):
        is_read_now = answer.request.stream
        return in_the_middle(error, answer) if is_read_now else before_commit(error, answer)
    log.error("answer failed", reason=str(error), exc_info=error)
    return errors.internal_error()


def before_commit(error: MeshnetError, answer: Answer) -> ApiError:
    """What a client sees when the Route failed before any of the answer went out."""
    if isinstance(error, HopFailedError) and error.kv is not None:
        return _beyond_capacity(error.kv, answer)
    if isinstance(error, HopFailedError) and error.code == GRAMMAR_FAILED:
        return cannot_be_followed(answer.request.rules_field, error.facts)
    if isinstance(error, NoRoomError):
        return errors.overloaded(str(error), RETRY_AFTER_SECONDS)
    if isinstance(error, RouteLostError):
        return errors.model_unavailable(str(error), RETRY_AFTER_SECONDS)
    return _upstream_failed(error)


def _upstream_failed(error: MeshnetError) -> ApiError:
    failed = errors.upstream_failed(str(error))
    if isinstance(error, BlamedError):
        return ApiError(failed.status, failed.body, errors.DO_NOT_RETRY)
    return failed


def in_the_middle(error: MeshnetError, answer: Answer) -> ApiError:
    """What a client sees in its stream once that has begun."""
    if answer.has_tokens and not (isinstance(error, NoRoomError) or _is_what_was_asked(error)):
        return errors.worker_lost(str(error))
    return before_commit(error, answer)


def _is_what_was_asked(error: MeshnetError) -> bool:
    # A grammar that grows beyond its limits does so on every Worker.
    return isinstance(error, HopFailedError) and error.code == GRAMMAR_FAILED


def _beyond_capacity(kv: KvFigures, answer: Answer) -> ApiError:
    prompt_tokens, field = answer.longest_prompt, answer.request.PROMPT_FIELD
    message = (
        f"The prompt has {prompt_tokens} tokens, but the memory lent for this model holds "
        f"{kv.capacity}: {kv.needed} KV blocks are needed, {kv.free} of {kv.total} are free. "
        f"Shorten the {field}."
    )
    return errors.too_many_tokens(message, field, prompt_tokens, kv.capacity)
