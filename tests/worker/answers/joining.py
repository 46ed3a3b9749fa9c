"""What clients of each API make of an answer, so that answers can be compared."""

import json
from typing import Any

from meshnet_common.openai.sse import DONE_EVENT


def chunks_of(data: bytes) -> list[Any]:
    events = data.removesuffix(DONE_EVENT).split(b"\n\n")[:-1]
    return [json.loads(event.removeprefix(b"data: ")) for event in events]


def response_joined(data: bytes) -> Any:
    """The same of a Responses stream, which must be in order and agree with its last event."""
    events = chunks_of(data)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    deltas = kinds.count("output_text.delta")
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * deltas,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        kinds[-1],
    ]
    text = "".join(event["delta"] for event in events if "delta" in event)
    told, part, item, last = events[-4:]
    assert (told["text"], part["part"]["text"]) == (text, text)
    assert last["response"]["output"] == [item["item"]]
    return response_choice(last["response"])


def response_choice(response: Any) -> Any:
    """What the only choice of a Responses answer says."""
    (message,) = response["output"]
    ended = {"completed": "stop", "incomplete": "length"}[response["status"]]
    assert message["status"] == response["status"]
    return {"text": message["content"][0]["text"], "tokens": [], "finish_reason": ended}


def read(told: Any) -> tuple[str, list[Any], str | None]:
    """What one choice says in a chunk or a whole answer: its text, its tokens, how it ended."""
    if "text" in told:
        logprobs = told["logprobs"] or {}
        tokens = list(zip(*logprobs.values(), strict=True))
        return told["text"], [list(token) for token in tokens], told["finish_reason"]
    message = told["delta"] if "delta" in told else told["message"]
    tokens = (told["logprobs"] or {"content": []})["content"]
    return message.get("content", ""), tokens, told["finish_reason"]


def joined(data: bytes) -> list[Any]:
    """The choices of a stream, as a client that joins its pieces sees them."""
    choices: dict[int, Any] = {}
    if b'"sequence_number"' in data:
        return [response_joined(data)]
    for chunk in chunks_of(data):
        for told in chunk["choices"]:
            blank: dict[str, Any] = {"text": "", "tokens": [], "finish_reason": None}
            choice = choices.setdefault(told["index"], blank)
            assert choice["finish_reason"] is None
            text, tokens, choice["finish_reason"] = read(told)
            choice["text"] += text
            choice["tokens"] += tokens
    # Of a chat some clients join choices in the order in which they come.
    assert list(choices) == sorted(choices) or b'"text_completion"' in data
    return [choices[index] for index in sorted(choices)]
