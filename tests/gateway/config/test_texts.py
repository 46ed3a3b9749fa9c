import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_gateway.config.settings import Peer
from meshnet_gateway.config.texts import read_json, read_peers, read_scalar, read_words
from tests.gateway.config.builders import settings_of

NAMES = st.text("abcXYZ019._-", min_size=1, max_size=12)
HOSTS = st.text("abcxyz019", min_size=1, max_size=12)
PEERS = st.lists(
    st.builds(
        Peer,
        id=NAMES,
        base_url=HOSTS.map(lambda host: f"http://{host}:8000"),
        models=st.lists(NAMES | st.just("*"), min_size=1, max_size=3).map(tuple),
        priority=st.integers(0, 9),
        weight=st.floats(0.001, 1000),
    ),
    max_size=4,
    unique_by=lambda peer: peer.id,
)


def as_csv(peer: Peer) -> str:
    models = ";".join(peer.models)
    return f"{peer.id}|{peer.base_url}|{models}|{peer.priority}|{peer.weight!r}"


def as_record(peer: Peer) -> dict[str, Any]:
    return {
        "id": peer.id,
        "baseUrl": peer.base_url,
        "models": peer.models,
        "priority": peer.priority,
        "weight": peer.weight,
    }


@given(PEERS)
def test_peers_come_back_from_csv_and_from_json(peers: list[Peer]) -> None:
    for text in (",".join(map(as_csv, peers)), json.dumps([as_record(peer) for peer in peers])):
        assert settings_of({}, {"MESH_FEDERATION_PEERS": text}).peers == tuple(peers)


def test_cells_left_out_have_their_defaults() -> None:
    settings = settings_of({}, {"MESH_FEDERATION_PEERS": "a|http://a:1 , b|http://b:1||2"})

    assert settings.peers == (
        Peer(id="a", base_url="http://a:1", models=("*",), priority=0, weight=1.0),
        Peer(id="b", base_url="http://b:1", models=("*",), priority=2, weight=1.0),
    )


@pytest.mark.parametrize("text", ["", "  ", "[]"])
def test_no_text_means_no_peers(text: str) -> None:
    assert read_peers(text) == []


def test_a_cell_too_many_is_kept_so_that_it_is_a_fault() -> None:
    assert read_peers("a|http://a|m|1|1|more")[0]["cell 6"] == "more"


@pytest.mark.parametrize(
    ("text", "value"), [("8", 8), ("0.5", 0.5), ("many", "many"), ("", ""), ("1e3", 1000.0)]
)
def test_what_is_no_number_stays_text(text: str, value: object) -> None:
    assert read_scalar(text) == value


def test_words_stand_between_commas_or_blanks() -> None:
    assert read_words(" chat, lite  super,") == ["chat", "lite", "super"]


def test_broken_json_says_so_and_where() -> None:
    with pytest.raises(ValueError, match=r"no JSON.*line 2"):
        read_json('{\n"a"')


def test_a_key_that_comes_twice_is_refused_since_one_of_them_would_be_lost() -> None:
    with pytest.raises(ValueError, match="`a` comes more than once"):
        read_json('{"b": {"a": 1, "a": 2}}')
