import base64

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from meshnet_common.edge.clock import ManualClock
from meshnet_common.errors import TicketError
from meshnet_common.protocol.tickets import ticket_key_id, verify_ticket
from meshnet_tracker.records import SigningKey
from meshnet_tracker.signing import TICKET_SECONDS, Signer, fresh_key, live_keys, live_until
from meshnet_tracker.store.store import Store
from tests.common.builders import ticket, token_of
from tests.tracker.builders import NOW

RENEWAL = 3600.0


async def signer_at(store: Store, clock: ManualClock) -> Signer:
    return await Signer.of(store, clock, RENEWAL)


def shown(signer: Signer) -> list[str]:
    return [key["kid"] for key in signer.key_set()["keys"]]


async def test_every_tracker_of_a_database_signs_with_the_same_key(store: Store) -> None:
    one, other = [await signer_at(store, ManualClock(NOW)) for _ in range(2)]
    assert await other.verify(one.sign(ticket())) == ticket()
    assert one.key_set() == other.key_set()


async def test_a_ticket_verifies_with_the_public_half_that_is_shown(store: Store) -> None:
    signer = await signer_at(store, ManualClock(NOW))
    token = signer.sign(ticket())
    (key,) = signer.key_set()["keys"]
    public = Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(key["x"] + "="))
    assert key["kid"] == ticket_key_id(token)
    assert verify_ticket(token, public) == ticket()
    assert jwt.PyJWKSet.from_dict(signer.key_set()).keys[0].key_id == key["kid"]


async def test_a_new_key_signs_as_soon_as_a_tracker_looks_and_the_old_one_still_verifies(
    store: Store,
) -> None:
    clock = ManualClock(NOW)
    signer = await signer_at(store, clock)
    old = signer.sign(ticket())
    clock.advance(10)
    await store.add_signing_key(added := fresh_key(clock.now()))
    await signer.refresh()
    assert ticket_key_id(signer.sign(ticket())) == added.key_id
    assert shown(signer) == [added.key_id, ticket_key_id(old)]
    assert await signer.verify(old) == ticket()


async def test_a_ticket_of_a_key_that_another_tracker_took_first_is_known_at_once(
    store: Store,
) -> None:
    clock = ManualClock(NOW)
    behind = await signer_at(store, clock)
    await store.add_signing_key(fresh_key(NOW))
    ahead = await signer_at(store, clock)
    assert await behind.verify(ahead.sign(ticket())) == ticket()


async def test_an_old_key_goes_when_no_session_it_admitted_can_be_renewed(store: Store) -> None:
    clock = ManualClock(NOW)
    signer = await signer_at(store, clock)
    old = signer.sign(ticket())
    clock.advance(10)
    await store.add_signing_key(fresh_key(clock.now()))
    clock.advance(RENEWAL + TICKET_SECONDS)
    await signer.refresh()
    assert await signer.verify(old) == ticket()
    clock.advance(1)
    await signer.refresh()
    assert len(await store.signing_keys()) == len(shown(signer)) == 1
    with pytest.raises(TicketError, match="no longer"):
        await signer.verify(old)


async def test_a_strangers_ticket_is_refused(store: Store) -> None:
    signer = await signer_at(store, ManualClock(NOW))
    (own,) = shown(signer)
    for token in ("junk", token_of(ticket()), token_of(ticket(), key_id=own)):
        with pytest.raises(TicketError):
            await signer.verify(token)


def test_the_newest_key_has_no_end_and_each_other_lives_on_from_the_next_ones_making() -> None:
    keys = [SigningKey(name, b"", made) for name, made in (("c", 300.0), ("b", 200.0), ("a", 0.0))]
    ends = [float("inf"), 300.0 + RENEWAL + TICKET_SECONDS, 200.0 + RENEWAL + TICKET_SECONDS]
    assert live_until(keys, RENEWAL) == ends
    assert live_until([], RENEWAL) == []
    assert live_keys(keys, RENEWAL, ends[2] + 1) == tuple(keys[:2])
    assert live_keys(keys, RENEWAL, ends[1] + 1) == tuple(keys[:1])
