import json

import pytest

from meshnet_gateway.answering.affinity_key import affinity_key


def key(*messages: tuple[str, object], **fields: object) -> str:
    listed = [{"role": role, "content": text} for role, text in messages]
    return affinity_key(json.dumps({"model": "smol", "messages": listed, **fields}).encode())


def test_all_turns_that_begin_alike_have_one_key() -> None:
    opening = (("system", "Be kind."), ("user", "Hello"))
    later = (*opening, ("assistant", "Hi"), ("user", "And now?"))

    assert key(*opening) == key(*later)
    assert key(*opening) != key(("system", "Be kind."), ("user", "Bye"))
    assert key(*opening, temperature=1) == key(*opening)


def test_a_user_keeps_one_key_whatever_is_said() -> None:
    assert key(("user", "a"), user="u") == key(("user", "b"), user="u")
    assert key(("user", "a"), user="u") != key(("user", "a"), user="v")


@pytest.mark.parametrize(
    "body", [b"", b"junk", b'{"messages": 1}', b'{"prompt": "a"}', b'{"messages": [{}]}']
)
def test_what_cannot_be_read_has_a_key_all_the_same(body: bytes) -> None:
    assert affinity_key(body) == affinity_key(body)
    assert affinity_key(body) != affinity_key(body + b" more")
