"""LiteLLM as a client: its own argument names and error types around the OpenAI format."""

from functools import partial
from typing import Any

import litellm

from tests.clients.checks import (
    CASES,
    expect,
    expect_error,
    expect_free,
    expect_true,
    expect_valid,
    expect_vectors,
    facts,
    run_checks,
)

FACTS = facts()
MODEL = f"openai/{FACTS['chat_model']}"
TOOL = CASES["tool"]
TOOLS = [{"type": "function", "function": {**TOOL, "strict": True}}]
NAMED = {"type": "function", "function": {"name": TOOL["name"]}}
FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "town", "schema": CASES["schema"], "strict": True},
}
PLAIN: dict[str, Any] = {"api_base": FACTS["url"], "api_key": "none", "max_retries": 0}
HELD: dict[str, Any] = {**PLAIN, "api_base": FACTS["held_url"], "api_key": FACTS["key"]}

create = partial(litellm.completion, **{"model": MODEL, **PLAIN})


def chat() -> None:
    answer = create(**CASES["chat"])
    expect(answer.choices[0].message.content, FACTS["chat_text"], "its text")
    expect(answer.choices[0].finish_reason, FACTS["chat_finish"], "its end")
    expect(answer.usage.total_tokens, FACTS["chat_tokens"], "its tokens")


def stream() -> None:
    whole = create(**CASES["seeded"]).choices[0].message.content
    chunks = create(**CASES["seeded"], stream=True)
    expect(_text(chunks), whole, "the streamed text")


def tools() -> None:
    asked = {**CASES["tool_call"], "tools": TOOLS, "tool_choice": NAMED}
    (call,) = create(**asked).choices[0].message.tool_calls
    _expect_call(call)
    whole: Any = litellm.stream_chunk_builder(list(create(**asked, stream=True)))
    (again,) = whole.choices[0].message.tool_calls
    _expect_call(again)
    expect(again.function.arguments, call.function.arguments, "the streamed arguments")


def json_schema() -> None:
    asked = {**CASES["json_answer"], "response_format": FORMAT}
    expect_valid(create(**asked).choices[0].message.content, CASES["schema"])
    expect_valid(_text(create(**asked, stream=True)), CASES["schema"])


def embeddings() -> None:
    model = f"openai/{FACTS['embedding_model']}"
    answer = litellm.embedding(model=model, input=CASES["embeddings"], **PLAIN)
    expect_vectors([one["embedding"] for one in answer.data], FACTS["embeddings"])


def error_unknown_model() -> None:
    with expect_error(litellm.NotFoundError) as caught:
        create(**{**CASES["chat"], "model": "openai/nothing"})
    expect(caught[0].status_code, 404, "its status")


def error_too_long() -> None:
    turns = [{"role": "user", "content": "word " * CASES["too_many_words"]}]
    for streamed in (False, True):
        with expect_error(litellm.ContextWindowExceededError) as caught:
            create(messages=turns, stream=streamed)
        expect(caught[0].status_code, 400, "its status")


def error_wrong_key() -> None:
    with expect_error(litellm.AuthenticationError) as caught:
        create(**{**CASES["chat"], **HELD, "api_key": "wrong"})
    expect(caught[0].status_code, 401, "its status")


def comments() -> None:
    answer = create(**{**CASES["chat"], **HELD}, stop=FACTS["held_stop"], stream=True)
    expect(_text(answer), FACTS["chat_text"], "the text of a stream with comments")


def timeout() -> None:
    with expect_error(litellm.Timeout):
        create(
            **CASES["long_answer"],
            timeout=CASES["timeout_seconds"],
            extra_body={"ignore_eos": True},
        )
    expect_free(FACTS["workers"])


def _text(chunks: Any) -> str:
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def _expect_call(call: Any) -> None:
    expect(call.function.name, TOOL["name"], "the function")
    expect_true(call.id, "the call has no id")
    expect_valid(call.function.arguments, TOOL["parameters"])


if __name__ == "__main__":
    run_checks(
        {
            "chat": chat,
            "stream": stream,
            "tools": tools,
            "json": json_schema,
            "embeddings": embeddings,
            "error: unknown model": error_unknown_model,
            "error: context too long": error_too_long,
            "error: wrong key": error_wrong_key,
            "comments": comments,
            "timeout": timeout,
        }
    )
