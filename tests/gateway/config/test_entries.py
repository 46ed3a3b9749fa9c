from pathlib import Path

import msgspec
import pytest

from meshnet_common.edge.http import MAX_BODY_BYTES
from meshnet_gateway.config.entries import (
    LONGEST_BODY_BYTES,
    EmbeddingModelEntry,
    EndpointEntry,
    Entry,
    ModelEntry,
    PeerEntry,
    SettingsEntry,
    Url,
)
from meshnet_gateway.config.environment import VARIABLES
from meshnet_gateway.config.reading import Sources, read_settings
from tests.repo.tree import ROOT

MANUAL = (ROOT / "docs" / "gateway.md").read_text()


@pytest.mark.parametrize("text", ["http://a", " https://a:1/x/ ", "http://[::1]:8000/v1"])
def test_a_url_has_no_slash_or_blank_at_its_end(text: str) -> None:
    assert Url.parse(text) == text.strip().rstrip("/")


@pytest.mark.parametrize(
    "text",
    [
        *("", "a", "localhost:8000", "ftp://a", "http://", "http://a:0", "http://a:99999"),
        *("http://[a", "http://u:p@a", "http://a?x=1", "http://a#x"),
        *("http://a..b:80", f"http://{'a' * 64}", "http://.a"),
    ],
)
def test_what_no_request_could_go_to_is_no_base_url(text: str) -> None:
    with pytest.raises(ValueError, match=r"URL|port|Port|host"):
        Url.parse(text)


def test_one_server_has_one_spelling() -> None:
    assert Url.parse("HTTP://Gpu-1.Example:80/Path") == "http://gpu-1.example:80/Path"


def test_a_password_in_a_url_is_not_repeated() -> None:
    with pytest.raises(ValueError, match="no user") as caught:
        Url.parse("ftp://user:secret@a")

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "without"),
    [
        ("http://a:1/v1", "http://a:1"),
        ("http://a:1/v1/", "http://a:1"),
        ("http://a:1/api/v1", "http://a:1/api"),
        ("http://a:1/v11", "http://a:1/v11"),
        ("http://a:1", "http://a:1"),
    ],
)
def test_the_version_at_the_end_of_a_base_url_may_be_there_or_not(text: str, without: str) -> None:
    assert Url.parse(text).without_version == without


@pytest.mark.parametrize(
    "kind", [SettingsEntry, ModelEntry, EmbeddingModelEntry, EndpointEntry, PeerEntry]
)
def test_the_manual_names_every_field(kind: type[Entry]) -> None:
    fields = [field.name for field in msgspec.structs.fields(kind) if field.name != "place"]

    assert [field for field in fields if f"`{field}`" not in MANUAL] == []


def test_the_manual_names_every_variable() -> None:
    assert [variable for variable in VARIABLES if f"`{variable}`" not in MANUAL] == []


def test_the_example_of_the_manual_has_no_fault(tmp_path: Path) -> None:
    _, _, example = MANUAL.partition("```toml\n")
    file = tmp_path / "gateway.toml"
    file.write_text(example.partition("```")[0])

    settings = read_settings(Sources(file))

    assert [model.id for model in settings.models] == ["assistant", "embedder"]
    assert [peer.id for peer in settings.peers] == ["south"]


def test_the_bound_of_all_bodies_lets_the_longest_one_through() -> None:
    assert LONGEST_BODY_BYTES == MAX_BODY_BYTES
