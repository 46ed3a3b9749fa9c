"""langchain-openai: what every client is asked for, and then LangChain's own standard tests."""

import os
import sys
from pathlib import Path
from typing import Any

import openai
import pytest
from langchain_core.exceptions import ContextOverflowError
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import SecretStr

from tests.clients.checks import (
    CASES,
    MOST_LETTERS,
    expect,
    expect_error,
    expect_free,
    expect_true,
    expect_valid,
    expect_vectors,
    facts,
    report,
    run_checks,
)

FACTS = facts()
TOOL = CASES["tool"]
TOOLS = [{"type": "function", "function": {**TOOL, "strict": True}}]
SUITE = Path(__file__).with_name("langchain_suite.py")


def chat_model(case: str, **fields: Any) -> Any:
    """A model with everything of a case but its messages, which are given when it is asked."""
    settings = {
        "model": FACTS["chat_model"],
        "base_url": FACTS["url"],
        "api_key": SecretStr("not-needed"),
        "max_retries": 0,
        "stream_usage": True,
    }
    settings |= {name: value for name, value in CASES[case].items() if name != "messages"}
    return ChatOpenAI(**{**settings, **fields})


def held_model(case: str, key: str) -> Any:
    return chat_model(case, base_url=FACTS["held_url"], api_key=SecretStr(key))


def turns(case: str) -> Any:
    return CASES[case]["messages"]


def chat() -> None:
    answer = chat_model("chat").invoke(turns("chat"))
    expect(answer.content, FACTS["chat_text"], "its text")
    expect(answer.usage_metadata["total_tokens"], FACTS["chat_tokens"], "its tokens")
    expect(answer.response_metadata["finish_reason"], FACTS["chat_finish"], "its end")


def stream() -> None:
    model = chat_model("seeded")
    whole = model.invoke(turns("seeded")).content
    expect(_text(model.stream(turns("seeded"))), whole, "the streamed text")


def tools() -> None:
    model = chat_model("tool_call").bind_tools(TOOLS, tool_choice=TOOL["name"])
    (call,) = model.invoke(turns("tool_call")).tool_calls
    pieces = list(model.stream(turns("tool_call")))
    (again,) = sum(pieces[1:], pieces[0]).tool_calls
    for one in (call, again):
        expect(one["name"], TOOL["name"], "the function")
        expect(list(one["args"]), TOOL["parameters"]["required"], "the arguments")
    expect(again["args"], call["args"], "the streamed arguments")


def json_schema() -> None:
    schema = {"title": "town", "description": "A town.", **CASES["schema"]}
    model = chat_model("json_answer").with_structured_output(
        schema, method="json_schema", strict=True, include_raw=True
    )
    told = model.invoke(turns("json_answer"))
    expect_valid(told["raw"].content, CASES["schema"])
    expect_true(told["parsed"], "nothing was parsed")


def embeddings() -> None:
    embedder = OpenAIEmbeddings(
        model=FACTS["embedding_model"],
        base_url=FACTS["url"],
        api_key=SecretStr("not-needed"),
        check_embedding_ctx_length=False,
    )
    expect_vectors(embedder.embed_documents(CASES["embeddings"]), FACTS["embeddings"])


def error_unknown_model() -> None:
    with expect_error(openai.NotFoundError) as caught:
        chat_model("chat", model="nothing").invoke(turns("chat"))
    expect(caught[0].code, "model_not_found", "its code")


def error_too_long() -> None:
    text = "word " * CASES["too_many_words"]
    with expect_error(ContextOverflowError):
        chat_model("chat").invoke(text)
    with expect_error(ContextOverflowError):
        _text(chat_model("chat").stream(text))


def error_wrong_key() -> None:
    with expect_error(openai.AuthenticationError) as caught:
        held_model("chat", "wrong").invoke(turns("chat"))
    expect(caught[0].code, "invalid_api_key", "its code")


def comments() -> None:
    answer = held_model("chat", FACTS["key"]).stream(turns("chat"), stop=[FACTS["held_stop"]])
    expect(_text(answer), FACTS["chat_text"], "the text of a stream with comments")


def timeout() -> None:
    hurried = chat_model(
        "long_answer", timeout=CASES["timeout_seconds"], extra_body={"ignore_eos": True}
    )
    with expect_error(openai.APITimeoutError):
        hurried.invoke(turns("long_answer"))
    expect_free(FACTS["workers"])


class Reporter:
    """Turns the reports of pytest into our lines."""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or (report.when == "setup" and not report.passed):
            _report_test(report)


def _report_test(told: Any) -> None:
    name = told.nodeid.rpartition("langchain_suite.py::")[2].replace("::", ".")
    why = ""
    if told.failed:
        crash = getattr(told.longrepr, "reprcrash", None)
        why = crash.message if crash else str(told.longrepr)
    elif told.skipped:
        why = str(told.longrepr[2]).removeprefix("Skipped: ")
    report(f"standard: {name}", told.outcome, why[:MOST_LETTERS], told.duration)


def standard_tests() -> None:
    """Run LangChain's tests with its own pytest, without the settings of ours."""
    os.environ["MESH_FACTS"] = sys.argv[1]
    settings = (
        *("asyncio_mode=auto", "asyncio_default_fixture_loop_scope=session"),
        "asyncio_default_test_loop_scope=session",
    )
    pytest.main(
        [
            *(
                str(SUITE),
                "-s",
                "-p",
                "no:terminal",
                "--noconftest",
                "-c",
                os.devnull,
                "--rootdir",
                str(SUITE.parent),
            ),
            *("-p", "no:cacheprovider", "--import-mode=importlib", "--benchmark-disable"),
            *(argument for setting in settings for argument in ("-o", setting)),
        ],
        plugins=[Reporter()],
    )


def _text(pieces: Any) -> str:
    return "".join(piece.content for piece in pieces)


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
    standard_tests()
