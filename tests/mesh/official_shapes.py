"""What every answer must look like, by the types of the official client and the published schema.

The client's types know which fields there are; what must be there though it may be null, they leave
out, so that is told here.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from openai.types.chat import ChatCompletion, ChatCompletionChunk

ERROR_KEYS = {"message", "type", "param", "code"}
IDENTITY = ("id", "created", "model", "system_fingerprint")


@dataclass
class Told:
    """One choice as a client has it at the end."""

    text: str = ""
    finish_reason: str | None = None
    tokens: list[Any] = field(default_factory=list)


def choices_of_whole(body: bytes) -> tuple[list[Told], dict[str, int]]:
    """Check one body, and return its choices and its usage."""
    answer = json.loads(body)
    ChatCompletion.model_validate(answer, strict=True)
    assert answer["object"] == "chat.completion"
    assert {"id", "created", "model", "choices", "usage", "system_fingerprint"} <= answer.keys()
    choices = []
    for index, choice in enumerate(answer["choices"]):
        assert choice["index"] == index
        assert {"finish_reason", "logprobs", "message"} <= choice.keys()
        assert choice["message"]["role"] == "assistant"
        assert choice["message"]["refusal"] is None
        tokens = (choice["logprobs"] or {"content": []})["content"]
        choices.append(Told(choice["message"]["content"], choice["finish_reason"], tokens))
    return choices, answer["usage"]


def choices_of_stream(
    body: bytes, choice_count: int, *, tells_usage: bool
) -> tuple[list[Told], dict[str, int] | None]:
    """Check the order and the shape of all events; return what they join to."""
    *events, done, rest = body.decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    chunks = [json.loads(event.rsplit("\n", 1)[-1].removeprefix("data: ")) for event in events]
    usage = chunks.pop()["usage"] if tells_usage else None
    choices = [Told() for _ in range(choice_count)]
    for place, chunk in enumerate(chunks):
        ChatCompletionChunk.model_validate(chunk, strict=True)
        assert chunk["object"] == "chat.completion.chunk"
        assert [chunk[key] for key in IDENTITY] == [chunks[0][key] for key in IDENTITY]
        assert ("usage" in chunk, chunk.get("usage")) == (tells_usage, None)
        (choice,) = chunk["choices"]
        _take(choices, choice, place)
    assert all(choice.finish_reason for choice in choices)
    return choices, usage


def _take(choices: list[Told], choice: dict[str, Any], place: int) -> None:
    assert {"index", "delta", "finish_reason", "logprobs"} <= choice.keys()
    told = choices[choice["index"]]
    assert told.finish_reason is None
    if place < len(choices):
        # Who reads by place must not see the second choice before the first.
        assert (choice["index"], choice["finish_reason"]) == (place, None)
        assert choice["delta"] == {"role": "assistant", "content": ""}
        return
    told.finish_reason = choice["finish_reason"]
    if told.finish_reason is not None:
        assert choice["delta"] == {}
        return
    assert set(choice["delta"]) == {"content"}
    tokens = (choice["logprobs"] or {"content": []})["content"]
    # Without text only those tokens come whose bytes end inside a character.
    assert tokens or choice["delta"]["content"]
    assert not tokens or "".join(one["token"] for one in tokens) == choice["delta"]["content"]
    told.text += choice["delta"]["content"]
    told.tokens += tokens
