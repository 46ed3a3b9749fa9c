from pathlib import Path

import pytest

from meshnet_gateway.config.faults import SettingsError
from meshnet_gateway.config.reading import Sources, read_all, read_settings
from meshnet_gateway.config.settings import Settings

TOML = """
mesh_id = "north"
[[chat_models]]
id = "chat"
base_url = "http://a:1"
"""
JSON = '{"mesh_id": "north", "chat_models": [{"id": "chat", "base_url": "http://a:1"}]}'


def faults_in(file: Path, environment: dict[str, str] | None = None) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        read_settings(Sources(file, environment or {}))
    return caught.value.faults


def test_toml_and_json_say_the_same(tmp_path: Path) -> None:
    toml, json = tmp_path / "gateway.toml", tmp_path / "gateway.json"
    toml.write_text(TOML)
    json.write_text(JSON)

    assert read_settings(Sources(toml)) == read_settings(Sources(json))


def test_without_a_word_a_gateway_is_in_front_of_one_lone_mesh() -> None:
    sources = Sources()

    assert read_settings(sources) == Settings(mesh_id=sources.fresh_mesh_id)
    no_peers = Sources(environment={"MESH_FEDERATION_PEERS": ""}, fresh_mesh_id="m")
    assert read_settings(no_peers) == Settings(mesh_id="m")


def test_a_mesh_without_a_name_keeps_the_one_it_got_and_shares_it_with_nobody() -> None:
    sources = Sources()

    assert read_settings(sources).mesh_id == read_settings(sources).mesh_id
    assert read_settings(sources).mesh_id != read_settings(Sources()).mesh_id


def test_faults_of_all_kinds_are_told_in_one_run(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(
        TOML
        + 'parallel_instances = 300\nrol = "x"\n[[chat_models]]\nid = "b"\nmetrics_url = "http://b"\n'
    )

    faults = faults_in(file, {"MODEL_MAX_CONCURRENCY": "x", "GPU_CONCURRENCY_BUDGETS": "{"})

    assert {fault.partition(": ")[0] for fault in faults} == {
        "GPU_CONCURRENCY_BUDGETS",
        "MODEL_MAX_CONCURRENCY",
        "chat_models[0].rol",
        "chat_models[1].metrics_url",
    }


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.toml", b"a = ]", ("no TOML", "line 1")),
        ("a.json", b"{", ("no JSON",)),
        ("a.json", b"[]", ("table",)),
        ("a.toml", b"\xff", ("UTF-8",)),
        ("a.json", b"\xff", ("UTF-8",)),
        ("a.toml", b"a = " + b"[" * 100_000, ("nested",)),
        ("a.json", b'{"a": ' + b"[" * 100_000, ("nested",)),
    ],
)
def test_a_file_that_cannot_be_read_is_a_fault_with_its_name(
    tmp_path: Path, name: str, content: bytes, words: tuple[str, ...]
) -> None:
    file = tmp_path / name
    file.write_bytes(content)

    (fault,) = faults_in(file)

    assert fault.startswith(f"{file}: ")
    assert all(word in fault for word in words)


def test_a_file_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    assert faults_in(tmp_path / "no.toml") == (
        f"{tmp_path / 'no.toml'}: No such file or directory",
    )


def test_flags_come_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('meshes = ["http://file:1"]\nmax_waiting = 1\nconnect_retries = 1')
    environment = {"MESHNET_MESHES": "http://env:1", "MESHNET_GATEWAY_MAX_WAITING": "2"}
    flags = {"meshes": ("--mesh", ("http://flag:1",))}

    reading = read_all(Sources(file, environment, flags))

    settings = reading.settings
    assert (settings.meshes, settings.max_waiting) == (("http://flag:1",), 2)
    assert settings.connect_retries == 1
    assert reading.entry.place.of("meshes") == "--mesh"
    assert reading.entry.place.of("max_waiting") == "MESHNET_GATEWAY_MAX_WAITING"
