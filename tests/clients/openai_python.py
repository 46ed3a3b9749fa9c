"""The official Python client, whichever version is installed where this runs."""

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import openai
from pydantic import BaseModel

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
MODEL = FACTS["chat_model"]
TOOL = CASES["tool"]
TOOLS: Any = [{"type": "function", "function": {**TOOL, "strict": True}}]
NAMED: Any = {"type": "function", "function": {"name": TOOL["name"]}}
FORMAT: Any = {
    "type": "json_schema",
    "json_schema": {"name": "town", "schema": CASES["schema"], "strict": True},
}
UNLIMITED = {"ignore_eos": True}


class Town(BaseModel):
    """What the client's own helpers make a schema of, and read back."""

    town: Literal["Paris", "Rome"]
    is_capital: bool


client: Any = openai.OpenAI(base_url=FACTS["url"], api_key="not-needed", max_retries=0, timeout=60)
held_client = client.with_options(base_url=FACTS["held_url"], api_key=FACTS["key"])
create = partial(client.chat.completions.create, model=MODEL)


def chat() -> None:
    answer = create(**CASES["chat"])
    (choice,) = answer.choices
    expect(choice.message.content, FACTS["chat_text"], "its text")
    expect(answer.usage.total_tokens, FACTS["chat_tokens"], "its tokens")
    expect(choice.finish_reason, FACTS["chat_finish"], "its end")
    expect_true(answer._request_id, "no request id")


def models() -> None:
    expect_true(MODEL in [model.id for model in client.models.list()], "the model is not listed")
    expect(client.models.retrieve(MODEL).id, MODEL, "the model")


def stream() -> None:
    (choice,) = create(**CASES["seeded"]).choices
    chunks = list(create(**CASES["seeded"], stream=True, stream_options={"include_usage": True}))
    expect(_text(chunks), choice.message.content, "the streamed text")
    expect_true(chunks[-1].usage.completion_tokens > 0, "no usage")


def stream_async() -> None:
    async def told() -> str:
        async with openai.AsyncOpenAI(base_url=FACTS["url"], api_key="none") as a_client:
            answer: Any = await a_client.chat.completions.create(
                model=MODEL, **CASES["chat"], stream=True
            )
            return _text([chunk async for chunk in answer])

    expect(asyncio.run(told()), FACTS["chat_text"], "the streamed text")


def tools() -> None:
    asked = {**CASES["tool_call"], "tools": TOOLS, "tool_choice": NAMED}
    whole = create(**asked).choices[0]
    (call,) = whole.message.tool_calls
    _expect_call(call)
    with client.chat.completions.stream(model=MODEL, **asked) as events:
        streamed = events.get_final_completion().choices[0]
    (again,) = streamed.message.tool_calls
    _expect_call(again)
    expect(again.function.arguments, call.function.arguments, "the streamed arguments")
    expect(streamed.finish_reason, whole.finish_reason, "the streamed end")
    turns = [
        *asked["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    after = create(messages=turns, tools=TOOLS, tool_choice="none", max_tokens=8).choices[0]
    expect_true(after.message.content, "nothing was said of what the tool told")


def json_schema() -> None:
    asked = {**CASES["json_answer"], "response_format": FORMAT}
    expect_valid(create(**asked).choices[0].message.content, CASES["schema"])
    expect_valid(_text(create(**asked, stream=True)), CASES["schema"])
    parsed = client.chat.completions.parse(
        model=MODEL, **CASES["json_answer"], response_format=Town
    )
    expect_true(isinstance(parsed.choices[0].message.parsed, Town), "nothing was parsed")


def embeddings() -> None:
    for fields in ({}, {"encoding_format": "float"}):
        answer = client.embeddings.create(
            model=FACTS["embedding_model"], input=CASES["embeddings"], **fields
        )
        expect_vectors([one.embedding for one in answer.data], FACTS["embeddings"])


def error_unknown_model() -> None:
    with expect_error(openai.NotFoundError) as caught:
        client.chat.completions.create(model="nothing", **CASES["chat"])
    _expect_error(caught[0], 404, "model_not_found", "model")


def error_too_long() -> None:
    turns = [{"role": "user", "content": "word " * CASES["too_many_words"]}]
    for streamed in (False, True):
        with expect_error(openai.BadRequestError) as caught:
            create(messages=turns, stream=streamed)
        _expect_error(caught[0], 400, "context_length_exceeded", "messages")


def error_wrong_key() -> None:
    with expect_error(openai.AuthenticationError) as caught:
        held_client.with_options(api_key="wrong").models.list()
    _expect_error(caught[0], 401, "invalid_api_key", None)


def timeout() -> None:
    hurried = client.with_options(timeout=CASES["timeout_seconds"])
    with expect_error(openai.APITimeoutError):
        hurried.chat.completions.create(model=MODEL, **CASES["long_answer"], extra_body=UNLIMITED)
    expect_free(FACTS["workers"])


def hang_up() -> None:
    with create(**CASES["long_answer"], stream=True, extra_body=UNLIMITED) as answer:
        next(chunk for chunk in answer if chunk.choices and chunk.choices[0].delta.content)
    expect_free(FACTS["workers"])


def comments() -> None:
    answer = held_client.chat.completions.create(
        model=MODEL, **CASES["chat"], stop=FACTS["held_stop"], stream=True
    )
    expect(_text(answer), FACTS["chat_text"], "the text of a stream with comments")


def _text(chunks: Any) -> str:
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def _expect_call(call: Any) -> None:
    expect(call.function.name, TOOL["name"], "the function")
    expect_true(call.id, "the call has no id")
    expect_valid(call.function.arguments, TOOL["parameters"])


def _expect_error(error: Any, status: int, code: str, param: str | None) -> None:
    seen = (error.status_code, error.code, error.param)
    expect(seen, (status, code, param), "status, code and param")
    body: Mapping[str, object] = error.body
    expect_true(body["message"], f"no message in {json.dumps(body)}")


if __name__ == "__main__":
    run_checks(
        {
            "chat": chat,
            "models": models,
            "stream": stream,
            "stream, async": stream_async,
            "tools": tools,
            "json": json_schema,
            "embeddings": embeddings,
            "error: unknown model": error_unknown_model,
            "error: context too long": error_too_long,
            "error: wrong key": error_wrong_key,
            "comments": comments,
            "timeout": timeout,
            "hang up": hang_up,
        }
    )
