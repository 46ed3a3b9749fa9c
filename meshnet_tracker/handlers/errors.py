"""How the Tracker's own errors look to a client; raised deep inside, translated here only."""

from meshnet_common.edge.http import ErrorTable
from meshnet_common.errors import MeshnetError
from meshnet_common.openai.errors import (
    INVALID_REQUEST,
    ApiError,
    ErrorBody,
    database_unavailable,
    model_not_found,
    model_unavailable,
)
from meshnet_tracker.models import RETRY_AFTER_SECONDS, ModelUnavailableError, UnknownModelError
from meshnet_tracker.store.errors import (
    BadTokenError,
    DatabaseUnavailableError,
    SchemaError,
    UnknownDirectiveError,
)


def insufficient_memory(usable_bytes: int, layer_bytes: int) -> ApiError:
    """Refuse a Worker that no Layer fits; the message names both figures."""
    message = (
        f"Not even one layer fits: {usable_bytes} bytes are usable for weights after the headroom "
        f"for KV memory, the smallest layer of any model served here has {layer_bytes} bytes. "
        "Lend more memory."
    )
    body = ErrorBody(message, INVALID_REQUEST, "capabilities.vram_bytes", "insufficient_memory")
    return ApiError(422, body)


def _bad_token(error: MeshnetError) -> ApiError:
    body = ErrorBody(str(error), INVALID_REQUEST, None, "invalid_worker_token")
    return ApiError(401, body, {"WWW-Authenticate": "Bearer"})


def _unknown_directive(error: MeshnetError) -> ApiError:
    return ApiError(404, ErrorBody(str(error), INVALID_REQUEST, None, "directive_not_found"))


def _no_database(error: MeshnetError) -> ApiError:
    # What exactly the database said stays in the log.
    del error
    return database_unavailable(RETRY_AFTER_SECONDS)


ERROR_TABLE: ErrorTable = {
    BadTokenError: _bad_token,
    UnknownDirectiveError: _unknown_directive,
    DatabaseUnavailableError: _no_database,
    SchemaError: _no_database,
    UnknownModelError: lambda error: model_not_found(error.detail),
    ModelUnavailableError: lambda error: model_unavailable(error.detail, RETRY_AFTER_SECONDS),
}
