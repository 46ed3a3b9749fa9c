from pathlib import Path
from typing import Any

import msgspec
import pytest

from meshnet_gateway.config.entries import SettingsEntry
from meshnet_gateway.config.reading import Sources, read_all
from meshnet_gateway.config.showing import DEFAULT, show_settings

KEYS = {"KEY": "sk-very-secret"}


def shown(
    table: dict[str, Any], tmp_path: Path, environment: dict[str, str] | None = None
) -> dict[str, tuple[str, str]]:
    file = tmp_path / "gateway.json"
    file.write_bytes(msgspec.json.encode(table))
    reading = read_all(Sources(file, {**KEYS, **(environment or {})}))
    lines = show_settings(reading.entry, reading.settings, "the file")
    return {line.name: (line.value, line.origin) for line in lines}


def test_each_value_of_the_gateway_tells_where_it_is_from(tmp_path: Path) -> None:
    lines = shown({"max_waiting": 7}, tmp_path, {"MESH_PROXY_CONNECT_RETRIES": "3"})

    assert lines["max_waiting"] == ("7", "the file")
    assert lines["connect_retries"] == ("3", "MESH_PROXY_CONNECT_RETRIES")
    assert lines["meshes"] == ('["http://127.0.0.1:8080"]', DEFAULT)


def test_every_field_of_the_settings_is_shown(tmp_path: Path) -> None:
    lists = {"chat_models", "embedding_models", "federation_peers"}
    fields = {field.name for field in msgspec.structs.fields(SettingsEntry)} - {"place"}

    assert set(shown({}, tmp_path)) == fields - lists


def test_what_an_endpoint_takes_over_names_the_field_it_is_from(tmp_path: Path) -> None:
    endpoints = [{"base_url": "http://a:1"}, {"base_url": "http://b:1", "gpu_group": "b"}]
    model = {"id": "m", "gpu_group": "gpu", "endpoints": endpoints}

    lines = shown({"chat_models": [model], "hold_seconds": 9}, tmp_path)

    assert lines["chat_models[0].endpoints[0].gpu_group"] == ('"gpu"', "chat_models[0].gpu_group")
    assert lines["chat_models[0].endpoints[1].gpu_group"] == ('"b"', "the file")
    assert lines["chat_models[0].endpoints[1].weight"] == ("1.0", DEFAULT)
    assert lines["chat_models[0].hold_seconds"] == ("9.0", "hold_seconds")


@pytest.mark.parametrize(
    ("own", "everybodys", "line"),
    [
        (5, "9", ("5", "the file")),
        (9, "5", ("5", "MODEL_MAX_CONCURRENCY")),
        (None, "5", ("5", "MODEL_MAX_CONCURRENCY")),
        (None, "", ("200", DEFAULT)),
    ],
)
def test_a_ceiling_tells_which_of_two_it_is(
    tmp_path: Path, own: int | None, everybodys: str, line: tuple[str, str]
) -> None:
    table = {"chat_models": [{"id": "m", "base_url": "http://a:1", "ceiling": own}]}

    lines = shown(table, tmp_path, {"MODEL_MAX_CONCURRENCY": everybodys})

    assert lines["chat_models[0].ceiling"] == line


def test_no_key_is_shown_wherever_it_stands(tmp_path: Path) -> None:
    url = {"base_url": "http://a:1", "api_key": KEYS["KEY"]}
    table = {
        "chat_models": [{"id": "m", "base_url": "http://b:1", "api_key_env": "KEY"}],
        "embedding_models": [
            {"id": "e", "endpoints": [url], "fallback": {**url, "base_url": "http://c"}}
        ],
        "federation_peers": [{"id": "p", **url}],
    }

    lines = shown(table, tmp_path)

    assert KEYS["KEY"] not in str(lines)
    keys = [line for name, line in lines.items() if name.endswith("api_key")]
    assert keys == [("(hidden)", "the file")] * 4


def test_a_peer_tells_the_variable_that_it_is_from(tmp_path: Path) -> None:
    lines = shown({}, tmp_path, {"MESH_FEDERATION_PEERS": "p|http://p:1"})

    assert lines["MESH_FEDERATION_PEERS record 1: id"] == ('"p"', "MESH_FEDERATION_PEERS")
    assert lines["MESH_FEDERATION_PEERS record 1: weight"] == ("1.0", DEFAULT)


def test_a_model_of_a_mesh_shows_what_holds_for_its_head_workers(tmp_path: Path) -> None:
    lines = shown({"chat_models": [{"id": "m", "parallel_instances": 2}]}, tmp_path)

    assert lines["chat_models[0].parallel_instances"] == ("2", "the file")
    assert "chat_models[0].base_url" not in lines
