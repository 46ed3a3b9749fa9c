"""Builders of chat request bodies, in which only what matters to a test is visible."""

import json
from typing import Any

USER_TURN = {"role": "user", "content": "Hello"}


def chat_body(**fields: Any) -> bytes:
    return json.dumps({"model": "smol", "messages": [USER_TURN], **fields}).encode()


def body_with_message(**message: Any) -> bytes:
    return chat_body(messages=[message])


def raw_body(fields: str) -> bytes:
    """A valid body with more fields as JSON text, for what json.dumps would not write."""
    return chat_body()[:-1] + b", " + fields.encode("utf-8", "surrogatepass") + b"}"
