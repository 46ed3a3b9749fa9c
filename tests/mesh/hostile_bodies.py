"""Bodies that break a rule of the public API, by what is wrong with them."""

import json
from typing import Any

from tests.mesh.harness import chat_body
from tests.mesh.spelling_model import MODEL


def raw(fields: str) -> bytes:
    """A sound body with something behind it that json.dumps would not write."""
    return json.dumps(chat_body(MODEL, "a", max_tokens=2)).encode()[:-1] + f", {fields}}}".encode()


HUGE = "x" * 300_000
REFUSED: dict[str, tuple[bytes | dict[str, Any], str | None]] = {
    **{
        f"{field}={value}": (raw(f'"{field}": {value}'), field)
        for field in ("n", "seed", "max_completion_tokens", "top_k", "min_tokens")
        for value in ("1e999", "1e308", "1.5", "1.0", "9223372036854775808", '"1"', "true", "[]")
    },
    **{
        f"{field}={value}": (raw(f'"{field}": {value}'), field)
        for field in ("temperature", "top_p", "presence_penalty", "repetition_penalty")
        for value in ("999999", "-3", "1e999", '"1"', "true", "9223372036854775808")
    },
    **{
        f"a {value}": (raw(f'"temperature": {value}'), None)
        for value in ("NaN", "Infinity", "-Infinity", "01", "+1", ".5", "1.")
    },
    "arrays": (b"[" * 300_000, None),
    "objects": (b'{"a":' * 300_000, None),
    "arrays in a field": (raw('"metadata": ' + "[" * 100_000 + "]" * 100_000), None),
    "objects in a field": (raw('"metadata": ' + '{"a":' * 90_000 + "1" + "}" * 90_000), None),
    **{f"no object: {body!r}": (body, None) for body in (b"", b"[]", b"3", b"null", b'"a"', b"{")},
    "no model": ({"messages": [{"role": "user", "content": "a"}]}, "model"),
    "a token id beyond the vocabulary": (
        chat_body(MODEL, "a", logit_bias={"260": 1}),
        "logit_bias",
    ),
    "a key that comes twice": (raw('"model": "other"'), "model"),
    "a far token id": (chat_body(MODEL, "a", logit_bias={"9999999999": 1}), "logit_bias"),
    "a bias that is too strong": (raw('"logit_bias": {"1": 101}'), "logit_bias"),
    "choices without chance": (chat_body(MODEL, "a", n=2), "n"),
    "too many choices": (chat_body(MODEL, "a", n=5, temperature=1), "n"),
    "an empty stop": (chat_body(MODEL, "a", stop=[""]), "stop"),
    "five stops": (chat_body(MODEL, "a", stop=list("abcde")), "stop"),
    "a format without its schema": (
        chat_body(MODEL, "a", response_format={"type": "json_schema"}),
        "response_format.json_schema",
    ),
    "no tools": (chat_body(MODEL, "a", tools=[]), "tools"),
    "a choice of no tools": (chat_body(MODEL, "a", tool_choice="required"), "tool_choice"),
    "a URL": (
        chat_body(MODEL, "a")
        | {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1"}}],
                }
            ]
        },
        "messages[0].content[0].type",
    ),
    "huge names": (chat_body(MODEL, "a", tools=[{"type": HUGE}]), "tools[0].type"),
    "huge numbers": (raw(f'"n": {"9" * 300_000}'), "n"),
    "a huge key": (chat_body(MODEL, "a", logit_bias={HUGE: 1}), "logit_bias"),
    "a huge role": ({"model": MODEL, "messages": [{"role": HUGE}]}, "messages[0].role"),
    "a huge keyword": (
        chat_body(
            MODEL,
            "a",
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"type": "object", HUGE: 1}},
            },
        ),
        "response_format.json_schema.schema",
    ),
    "zeros": (chat_body("\0" * 250, "a"), "model"),
}
