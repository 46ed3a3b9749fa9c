import base64

import jwt
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.errors import TicketError
from meshnet_common.protocol.tickets import sign_ticket, ticket_key_id, verify_ticket
from tests.common.builders import KEY_ID, NOW, signing_key, ticket, token_of

PUBLIC = signing_key().public_key()
TOKEN = token_of(ticket())
HEADER, CLAIMS, SIGNATURE = TOKEN.split(".")


def part(value: object) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(value)).decode().rstrip("=")


def test_a_ticket_survives_its_signature() -> None:
    assert verify_ticket(TOKEN, PUBLIC) == ticket()


def test_a_ticket_names_the_key_that_signed_it() -> None:
    assert ticket_key_id(TOKEN) == KEY_ID


def test_a_strangers_signature_is_refused() -> None:
    with pytest.raises(TicketError):
        verify_ticket(token_of(ticket(), seed=1), PUBLIC)


def test_changed_claims_are_refused() -> None:
    claims = part(msgspec.to_builtins(ticket(session_id="s2")))
    with pytest.raises(TicketError):
        verify_ticket(f"{HEADER}.{claims}.{SIGNATURE}", PUBLIC)


@pytest.mark.parametrize("algorithm", ["none", "HS256"])
def test_another_algorithm_is_refused(algorithm: str) -> None:
    header = part({"alg": algorithm, "typ": "JWT", "kid": KEY_ID})
    with pytest.raises(TicketError):
        verify_ticket(f"{header}.{CLAIMS}.{SIGNATURE}", PUBLIC)


@given(st.integers(0, len(TOKEN) - 2), st.characters(min_codepoint=33, max_codepoint=126))
def test_a_changed_character_is_refused(place: int, character: str) -> None:
    if TOKEN[place] == character:
        return
    with pytest.raises(TicketError):
        verify_ticket(TOKEN[:place] + character + TOKEN[place + 1 :], PUBLIC)


NESTED = base64.urlsafe_b64encode(b"[" * 39_999).decode()
JUNK = ["", "..", "a.b.c", "é.é.é", "a.b\udcff.c", f"{part([])}.e30.e30", f"{NESTED}.e30.e30"]


@pytest.mark.parametrize("junk", JUNK, ids=range(len(JUNK)))
def test_junk_is_refused(junk: str) -> None:
    with pytest.raises(TicketError):
        ticket_key_id(junk)
    with pytest.raises(TicketError):
        verify_ticket(junk, PUBLIC)


@given(st.text(max_size=200))
def test_random_text_is_refused(text: str) -> None:
    with pytest.raises(TicketError):
        ticket_key_id(text)
    with pytest.raises(TicketError):
        verify_ticket(text, PUBLIC)


def test_a_ticket_that_names_no_key_is_refused() -> None:
    token = jwt.encode(msgspec.to_builtins(ticket()), signing_key(), algorithm="EdDSA")
    with pytest.raises(TicketError):
        ticket_key_id(token)


@pytest.mark.parametrize(
    "claims", [{}, {"session_id": 3}, {**msgspec.to_builtins(ticket()), "hops": "all of them"}]
)
def test_signed_claims_of_another_shape_are_refused(claims: dict[str, object]) -> None:
    token = jwt.encode(claims, signing_key(), algorithm="EdDSA", headers={"kid": KEY_ID})
    with pytest.raises(TicketError):
        verify_ticket(token, PUBLIC)


def test_a_ticket_is_fresh_until_it_expires() -> None:
    one = ticket(expires_at=NOW)
    one.check_fresh(NOW)
    with pytest.raises(TicketError, match=r"2\.5 seconds ago"):
        one.check_fresh(NOW + 2.5)


def test_expiry_is_no_matter_of_the_signature() -> None:
    old = ticket(expires_at=1.0)
    assert verify_ticket(sign_ticket(old, signing_key(), KEY_ID), PUBLIC) == old


def test_every_choice_of_an_answer_is_a_session_of_its_own_with_its_place_in_the_order() -> None:
    claims = ticket(admission_seq=5)
    choices = [claims.of_choice(k) for k in range(3)]
    assert [one.session_id for one in choices] == ["s1", "s1.1", "s1.2"]
    assert [one.order for one in choices] == [(5, 0), (5, 1), (5, 2)]
    assert choices[0] == claims
    assert choices[2].hops == claims.hops
    assert max(choices[2].order, ticket(admission_seq=6).order) == (6, 0)


def test_a_choice_has_no_choices() -> None:
    with pytest.raises(TicketError):
        ticket().of_choice(1).of_choice(1)
