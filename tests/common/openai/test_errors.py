import json

import pytest

from meshnet_common.openai import errors
from meshnet_common.openai.errors import ApiError

TABLE = [
    (errors.invalid_request("no"), 400, "invalid_request_error", None),
    (errors.invalid_unicode(), 400, "invalid_request_error", "invalid_unicode"),
    (errors.unsupported_value("n", "no"), 400, "invalid_request_error", "unsupported_value"),
    (
        errors.context_length_exceeded(9, 8),
        400,
        "invalid_request_error",
        "context_length_exceeded",
    ),
    (errors.invalid_api_key(), 401, "invalid_request_error", "invalid_api_key"),
    (errors.forbidden("no", "invalid_ticket"), 403, "invalid_request_error", "invalid_ticket"),
    (errors.model_not_allowed("m"), 403, "invalid_request_error", "model_not_allowed"),
    (errors.not_found("no"), 404, "invalid_request_error", None),
    (errors.model_not_found("m"), 404, "invalid_request_error", "model_not_found"),
    (errors.method_not_allowed("PUT", "GET"), 405, "invalid_request_error", None),
    (errors.request_too_large(1), 413, "invalid_request_error", "request_too_large"),
    (errors.unsupported_media_type("no"), 415, "invalid_request_error", None),
    (errors.rate_limited("no", "tokens", 3), 429, "tokens", "rate_limit_exceeded"),
    (errors.insufficient_balance("no"), 429, "insufficient_quota", "insufficient_quota"),
    (errors.internal_error(), 500, "server_error", "internal_error"),
    (errors.upstream_failed("no"), 502, "server_error", "upstream_failed"),
    (errors.request_blamed(3), 502, "server_error", "upstream_failed"),
    (errors.request_blamed(3, is_begun=True), 502, "server_error", "worker_lost"),
    (errors.worker_lost("no"), 502, "server_error", "worker_lost"),
    (errors.overloaded("no", 3), 503, "server_error", "overloaded"),
    (errors.model_unavailable("no", 3), 503, "server_error", "model_unavailable"),
    (errors.deadline_exceeded("no"), 504, "server_error", "deadline_exceeded"),
]


@pytest.mark.parametrize(("error", "status", "kind", "code"), TABLE)
def test_every_error_has_its_row_of_the_table(
    error: ApiError, status: int, kind: str, code: str | None
) -> None:
    body = json.loads(error.to_json())["error"]

    assert (error.status, body["type"], body["code"]) == (status, kind, code)


@pytest.mark.parametrize("error", [row[0] for row in TABLE])
def test_all_four_keys_are_always_there(error: ApiError) -> None:
    assert {"message", "type", "param", "code"} <= json.loads(error.to_json())["error"].keys()


def test_a_prompt_that_does_not_fit_names_both_numbers() -> None:
    body = json.loads(errors.context_length_exceeded(9000, 8192).to_json())["error"]

    assert (body["n_prompt_tokens"], body["n_ctx"]) == (9000, 8192)
    # Two clients know it by these words.
    assert "prompt is too long" in body["message"]
    assert "9000" in body["message"]
    assert "8192" in body["message"]


def test_a_message_does_not_grow_with_the_request() -> None:
    error = errors.model_not_found("m" * 100_000)

    assert len(error.to_json()) < 1000


@pytest.mark.parametrize("letter", ["\0", "\n", "\x1b", "\u2028", "\U0001f600", "\x7f", '"', "\\"])
def test_a_message_is_readable_and_small_whatever_the_request_holds(letter: str) -> None:
    for error in (errors.model_not_found(letter * 250), errors.not_found(letter * 8000)):
        body = error.to_json()
        assert len(body) < 4 * errors.MAX_MESSAGE_CHARACTERS + 200
        assert json.loads(body)["error"]["message"].isprintable()


def test_clients_are_told_not_to_retry_an_empty_account() -> None:
    assert errors.insufficient_balance("no").headers["x-should-retry"] == "false"


def test_what_was_made_in_part_or_took_too_long_is_not_asked_for_again() -> None:
    for error in (errors.worker_lost("gone"), errors.deadline_exceeded("late")):
        assert error.headers == errors.DO_NOT_RETRY


def test_whoever_may_come_again_later_is_told_when() -> None:
    for error in (
        errors.rate_limited("much", "tokens", 7),
        errors.overloaded("full", 7),
        errors.model_unavailable("not now", 7),
        errors.database_unavailable(7),
    ):
        assert error.headers == {"Retry-After": "7"}


@pytest.mark.parametrize(
    "error",
    [
        errors.overloaded("no", 7),
        errors.model_unavailable("no", 7),
        errors.rate_limited("no", "requests", 7),
    ],
)
def test_a_refusal_for_now_says_when_to_come_back(error: ApiError) -> None:
    assert error.headers["Retry-After"] == "7"


def test_a_missing_key_is_asked_for() -> None:
    assert errors.invalid_api_key().headers["WWW-Authenticate"] == "Bearer"
