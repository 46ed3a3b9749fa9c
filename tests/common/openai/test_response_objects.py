import msgspec

from meshnet_common.openai.response_objects import ItemEvent, OutputMessage, TextDelta


def test_every_event_says_first_what_it_is_and_which() -> None:
    message = OutputMessage(id="msg_1", status="in_progress", content=())
    item = ItemEvent(type="a", sequence_number=3, output_index=0, item=message)
    delta = TextDelta(type="b", sequence_number=4, item_id="msg_1", output_index=0, delta="x")
    assert msgspec.json.encode(item).startswith(b'{"type":"a","sequence_number":3,')
    assert msgspec.json.decode(msgspec.json.encode(delta)) == {
        "type": "b",
        "sequence_number": 4,
        "item_id": "msg_1",
        "output_index": 0,
        "content_index": 0,
        "delta": "x",
        "logprobs": [],
    }
