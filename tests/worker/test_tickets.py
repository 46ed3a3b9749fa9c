import asyncio
import base64
import json

import pytest
from cryptography.hazmat.primitives import serialization

from meshnet_common.errors import TicketError
from meshnet_common.protocol.tickets import RouteTicket
from meshnet_worker import tickets
from meshnet_worker.tickets import KeySet, TicketBook, read_key_set
from tests.common.builders import KEY_ID, signing_key, ticket, token_of
from tests.worker.waiting import SECONDS, Changes, ending_tasks

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
        self.changes = Changes()

    async def fetch(self) -> KeySet:
        self.asked += 1
        self.changes.tell()
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


def named(key_id: str) -> str:
    """A ticket that a stranger signed with a key of this name."""
    return token_of(ticket(), seed=9, key_id=key_id)


async def outcome(book: TicketBook, token: str) -> RouteTicket | TicketError:
    try:
        return await book.verify(token)
    except TicketError as error:
        return error


class SlowTracker(Tracker):
    """Answers when it is let; notes how many fetches it had at a time."""

    def __init__(self, *keys: dict[str, str]) -> None:
        super().__init__(*keys)
        self.may_answer = asyncio.Event()
        self.is_asked = asyncio.Event()
        self.at_a_time: list[int] = []
        self._open = 0

    async def fetch(self) -> KeySet:
        self._open += 1
        self.at_a_time.append(self._open)
        self.is_asked.set()
        try:
            keys = await super().fetch()
            await self.may_answer.wait()
            return keys
        finally:
            self._open -= 1


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tickets, "PAUSE_SECONDS", 0.0)


@pytest.mark.usefixtures("no_pause")
async def test_a_flood_of_invented_keys_costs_the_tracker_two_fetches_one_at_a_time() -> None:
    tracker = SlowTracker(published())
    book = TicketBook(tracker.fetch)
    async with asyncio.TaskGroup() as tasks:
        flood = [tasks.create_task(outcome(book, named(f"k{number}"))) for number in range(500)]
        await tracker.is_asked.wait()
        tracker.may_answer.set()
    assert all(isinstance(refused.result(), TicketError) for refused in flood)
    assert tracker.asked <= 2
    assert set(tracker.at_a_time) == {1}


@pytest.mark.usefixtures("no_pause")
async def test_no_more_than_so_many_tickets_wait_for_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tickets, "MOST_WAITING", 2)
    tracker = SlowTracker(published())
    book = TicketBook(tracker.fetch)
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(book.verify(token_of(ticket()))) for _ in range(2)]
        await tracker.is_asked.wait()
        with pytest.raises(TicketError, match="Too many"):
            await book.verify(named("k1"))
        tracker.may_answer.set()
    assert [one.result() for one in waiting] == [ticket(), ticket()]
    assert await book.verify(token_of(ticket())) == ticket()


async def test_a_key_that_a_fetch_did_not_know_is_refused_at_once_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tracker = Tracker(published())
    book = TicketBook(tracker.fetch)
    for _ in range(10):
        with pytest.raises(TicketError, match="k1 is not"):
            await book.verify(named("k1"))
    assert tracker.asked == 1
    monkeypatch.setattr(tickets, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(tickets, "UNKNOWN_SECONDS", 0.0)
    for asked in (2, 3):
        with pytest.raises(TicketError):
            await book.verify(named("k2"))
        assert tracker.asked == asked


async def test_fetches_that_were_in_vain_have_a_pause_between_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tickets, "PAUSE_SECONDS", 0.05)
    tracker, now = Tracker(published()), asyncio.get_running_loop().time
    book, began = TicketBook(tracker.fetch), now()
    for number in range(3):
        with pytest.raises(TicketError):
            await book.verify(named(f"k{number}"))
    assert now() - began >= 2 * 0.05
    assert await book.verify(token_of(ticket())) == ticket()
    assert tracker.asked == 3


async def test_a_key_that_came_after_a_fetch_began_is_found_by_the_next() -> None:
    tracker = SlowTracker(published())
    book = TicketBook(tracker.fetch)
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(book.verify(token_of(ticket())))
        await tracker.is_asked.wait()
        tracker.keys = (published(), published(seed=1, key_id="key-2"))
        second = tasks.create_task(book.verify(token_of(ticket(), seed=1, key_id="key-2")))
        await asyncio.sleep(0)
        tracker.may_answer.set()
    assert [first.result(), second.result()] == [ticket(), ticket()]
    assert tracker.asked == 2


async def test_a_fetch_that_fails_fails_all_who_wait_for_it_and_the_next_is_made_at_once() -> None:
    tracker = Tracker()
    book = TicketBook(tracker.fetch)
    async with asyncio.TaskGroup() as tasks:
        both = [tasks.create_task(outcome(book, token_of(ticket()))) for _ in range(2)]
    assert all("shows no key" in str(one.result()) for one in both)
    assert tracker.asked == 1
    tracker.keys = (published(),)
    assert await book.verify(token_of(ticket())) == ticket()


async def test_who_leaves_in_the_middle_of_a_fetch_leaves_it_to_the_next() -> None:
    tracker = SlowTracker(published())
    book = TicketBook(tracker.fetch)
    async with asyncio.TaskGroup() as tasks:
        first, second = (tasks.create_task(book.verify(token_of(ticket()))) for _ in range(2))
        await tracker.is_asked.wait()
        first.cancel()
        tracker.may_answer.set()
    assert second.result() == ticket()
    assert first.cancelled()


@pytest.mark.usefixtures("no_pause")
async def test_names_of_unknown_keys_cost_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tickets, "MOST_UNKNOWN", 3)
    tracker = Tracker(published())
    book = TicketBook(tracker.fetch)
    for key_id in ("k1", "k2", "k3", "k4", "k" * 1000):
        with pytest.raises(TicketError):
            await book.verify(named(key_id))
    assert list(book._fetches._unknown) == ["k2", "k3", "k4"]
    assert tracker.asked == 4


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


async def test_a_revoked_key_stops_counting_and_a_tracker_that_is_away_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tickets, "FRESH_SECONDS", 0.001)
    tracker = Tracker(published())
    book = TicketBook(tracker.fetch)
    await book.verify(token_of(ticket()))
    async with asyncio.timeout(SECONDS), ending_tasks() as tasks:
        tasks.create_task(book.keep_fresh())
        tracker.keys = ()
        before = tracker.asked
        await tracker.changes.until(lambda: tracker.asked > before + 2)
        assert await book.verify(token_of(ticket())) == ticket()
        tracker.keys = (published(seed=1, key_id="key-2"),)
        before = tracker.asked
        await tracker.changes.until(lambda: tracker.asked > before + 1)
        with pytest.raises(TicketError, match="is not the Tracker's"):
            await book.verify(token_of(ticket()))
