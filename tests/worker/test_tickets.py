import base64
import json

import pytest
from cryptography.hazmat.primitives import serialization

from meshnet_common.errors import TicketError
from meshnet_worker.tickets import KeySet, TicketBook, read_key_set
from tests.common.builders import KEY_ID, signing_key, ticket, token_of

PUBLIC = signing_key().public_key()


def published(seed: int = 0, key_id: str = KEY_ID) -> dict[str, str]:
    raw = signing_key(seed).public_key().public_bytes_raw()
    x = base64.urlsafe_b64encode(raw).decode().rstrip("=")
    return {"kty": "OKP", "crv": "Ed25519", "x": x, "kid": key_id, "alg": "EdDSA", "use": "sig"}


def jwks(*keys: dict[str, str]) -> bytes:
    return json.dumps({"keys": keys}).encode()


class Tracker:
    """Publishes keys and counts how often it is asked."""

    def __init__(self, *keys: dict[str, str]) -> None:
        self.keys = keys
        self.asked = 0

    async def fetch(self) -> KeySet:
        self.asked += 1
        return read_key_set(jwks(*self.keys))


async def test_the_keys_are_fetched_once() -> None:
    tracker = Tracker(published())
    book = TicketBook(tracker.fetch)
    assert await book.verify(token_of(ticket())) == ticket()
    await book.verify(token_of(ticket(session_id="s2")))
    assert tracker.asked == 1


async def test_the_keys_are_fetched_again_for_one_that_is_new() -> None:
    tracker = Tracker(published())
    book = TicketBook(tracker.fetch)
    await book.verify(token_of(ticket()))
    tracker.keys = (published(), published(seed=1, key_id="key-2"))
    assert await book.verify(token_of(ticket(), seed=1, key_id="key-2")) == ticket()
    assert tracker.asked == 2


async def test_a_key_that_is_not_the_trackers_is_refused() -> None:
    book = TicketBook(Tracker(published()).fetch)
    with pytest.raises(TicketError, match="key-2 is not the Tracker's"):
        await book.verify(token_of(ticket(), key_id="key-2"))


async def test_a_stranger_who_uses_the_trackers_key_id_is_refused() -> None:
    book = TicketBook(Tracker(published()).fetch)
    with pytest.raises(TicketError):
        await book.verify(token_of(ticket(), seed=1))


async def test_junk_is_refused_without_asking_the_tracker() -> None:
    tracker = Tracker(published())
    with pytest.raises(TicketError):
        await TicketBook(tracker.fetch).verify("junk")
    assert tracker.asked == 0


def test_other_kinds_of_key_are_passed_over() -> None:
    keys = read_key_set(
        jwks({"kty": "oct", "k": "c2VjcmV0", "kid": "secret", "alg": "HS256"}, published())
    )
    assert list(keys) == [KEY_ID]
    raw = serialization.Encoding.Raw, serialization.PublicFormat.Raw
    assert keys[KEY_ID].public_bytes(*raw) == PUBLIC.public_bytes(*raw)


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"null",
        b"[]",
        b"1",
        b'{"keys": 3}',
        b'{"keys": []}',
        b'{"keys": [1]}',
        b'{"keys": [{"kty": "oct", "kid": "k"}]}',
        b'{"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "k"}]}',
        b'{"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "k", "x": "AAAA"}]}',
        b'{"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "k", "x": "A"}]}',
        '{"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "k", "x": "é"}]}'.encode(),
        b"\xff",
        b"[" * 9_999,
    ],
)
def test_a_key_set_that_is_junk_is_refused(junk: bytes) -> None:
    with pytest.raises(TicketError):
        read_key_set(junk)
