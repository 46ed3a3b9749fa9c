"""Every field that can be written can be written wrongly, and then the fault names its place."""

import msgspec
import pytest

from meshnet_gateway.config.entries import (
    EmbeddingModelEntry,
    EndpointEntry,
    Entry,
    FallbackEntry,
    ModelEntry,
    PeerEntry,
    SettingsEntry,
)
from meshnet_gateway.config.faults import Faults, Place
from meshnet_gateway.config.records import read_fields, read_record

ENTRIES = (
    SettingsEntry,
    ModelEntry,
    EmbeddingModelEntry,
    EndpointEntry,
    FallbackEntry,
    PeerEntry,
)
TAKES_ANYTHING = {(FallbackEntry, "fallback")}
FIELDS = [
    (kind, field.name)
    for kind in ENTRIES
    for field in msgspec.structs.fields(kind)
    if field.name != "place" and (kind, field.name) not in TAKES_ANYTHING
]
NOTHING_TAKES: tuple[object, ...] = (float("nan"), [[]], True)


def faults_in(kind: type[Entry], field: str, value: object) -> list[str]:
    faults = Faults()
    read_fields(kind, {"id": "a", "base_url": "http://a", field: value}, Place("here."), faults)
    return [found for found in faults.found if found.startswith(f"here.{field}")]


@pytest.mark.parametrize("value", NOTHING_TAKES, ids=str)
@pytest.mark.parametrize(("kind", "field"), FIELDS)
def test_a_wrong_value_of_any_field_is_a_fault_at_its_place(
    kind: type[Entry], field: str, value: object
) -> None:
    assert faults_in(kind, field, value)


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (SettingsEntry, "mesh_id", "a,b"),
        (SettingsEntry, "mesh_id", "a\n"),
        (SettingsEntry, "connect_retries", -1),
        (SettingsEntry, "connect_backoff_ms", 0),
        (SettingsEntry, "keep_alive_seconds", 0),
        (SettingsEntry, "hold_seconds", float("inf")),
        (SettingsEntry, "model_max_concurrency", 0),
        (SettingsEntry, "gpu_concurrency_budgets", {"": 1}),
        (SettingsEntry, "gpu_concurrency_budgets", {"a": 0}),
        (ModelEntry, "id", ""),
        (ModelEntry, "balance", "fair"),
        (ModelEntry, "hold_seconds", -1),
        (EmbeddingModelEntry, "dimensions", 0),
        (EndpointEntry, "weight", 0),
        (EndpointEntry, "max_concurrent_requests", 0),
        (EndpointEntry, "parallel_instances", 1.5),
        (PeerEntry, "id", "a b"),
        (PeerEntry, "models", []),
        (PeerEntry, "priority", -1),
        (PeerEntry, "weight", -2),
    ],
)
def test_a_value_beyond_its_bounds_is_a_fault(kind: type[Entry], field: str, value: object) -> None:
    assert faults_in(kind, field, value)


@pytest.mark.parametrize(
    ("kind", "field"), [(EndpointEntry, "base_url"), (ModelEntry, "id"), (PeerEntry, "base_url")]
)
def test_a_field_that_must_be_there_is_missed(kind: type[Entry], field: str) -> None:
    faults = Faults()

    assert read_record(kind, {}, Place("here."), faults) is None
    assert f"here.{field}: is missing" in faults.found


def test_a_misspelt_field_is_told_with_what_was_meant() -> None:
    assert faults_in(EndpointEntry, "gpugroup", "a") == [
        "here.gpugroup: there is no such field; did you mean `gpu_group`?"
    ]


def test_the_place_of_an_entry_is_no_field() -> None:
    assert faults_in(ModelEntry, "place", "elsewhere")


def test_a_record_that_is_no_table_is_a_fault_and_those_beside_it_are_read() -> None:
    faults = Faults()

    fields = read_fields(SettingsEntry, {"chat_models": [3, {"id": "a"}]}, Place(), faults)

    assert faults.found == ("chat_models[0]: expected a table of fields, got a number",)
    assert [model.id for model in fields["chat_models"]] == ["a"]
    assert fields["chat_models"][0].place.of("id") == "chat_models[1].id"


def test_every_wrong_item_of_a_list_or_a_table_is_told() -> None:
    faults = Faults()
    table = {"meshes": ["x", "http://a", 3], "gpu_concurrency_budgets": {"a": 0, "b": 1, "c": "2"}}

    read_fields(SettingsEntry, table, Place(), faults)

    places = [found.partition(": ")[0] for found in faults.found]
    assert places == [
        "meshes[0]",
        "meshes[2]",
        "gpu_concurrency_budgets.a",
        "gpu_concurrency_budgets.c",
    ]


def test_a_peer_may_be_written_with_either_name_of_its_url() -> None:
    for name in ("base_url", "baseUrl"):
        peer = read_record(PeerEntry, {"id": "a", name: "http://a/"}, Place(), Faults())
        assert peer is not None
        assert peer.base_url == "http://a"


def test_a_field_that_is_given_by_both_of_its_names_is_a_fault() -> None:
    faults = Faults()
    both = {"id": "a", "base_url": "http://a", "baseUrl": "http://b"}

    assert read_record(PeerEntry, both, Place("peers[0]."), faults) is None
    assert faults.found == ("peers[0]: a field is given twice, by both of its names",)
