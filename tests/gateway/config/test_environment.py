import msgspec
import pytest

from meshnet_gateway.config.entries import SettingsEntry
from meshnet_gateway.config.environment import VARIABLES, read_environment
from meshnet_gateway.config.faults import Faults
from tests.gateway.config.builders import chat_model, faults_of, settings_of


def test_every_variable_stands_for_a_field_and_no_two_for_one() -> None:
    fields = [field for field, _ in VARIABLES.values()]

    assert len(set(fields)) == len(fields)
    assert set(fields) <= {field.name for field in msgspec.structs.fields(SettingsEntry)}


def test_the_variables_of_a_gateway_are_read() -> None:
    environment = {
        "MESHNET_MESHES": "http://a:1 http://b:1",
        "MESH_PROXY_CONNECT_RETRIES": "3",
        "MESH_PROXY_CONNECT_BACKOFF_MS": "250",
        "GPU_CONCURRENCY_BUDGETS": '{"gpu": 6}',
        "GPU_RESERVED_ROLES": "chat,lite",
        "MODEL_MAX_CONCURRENCY": "12",
        "MESHNET_GATEWAY_MESH_ID": "north",
        "MESHNET_GATEWAY_HOLD_SECONDS": "7.5",
        "MESHNET_GATEWAY_ACK_AFTER_MS": "0",
        "MESHNET_GATEWAY_KEEP_ALIVE_SECONDS": "2",
        "MESHNET_GATEWAY_MAX_WAITING": "9",
        "MESHNET_GATEWAY_MAX_TOTAL_BODY_BYTES": "5000000",
    }

    settings = settings_of({}, environment)

    assert settings.meshes == ("http://a:1", "http://b:1")
    assert (settings.connect_retries, settings.connect_backoff_ms) == (3, 250)
    assert settings.budgets == {"gpu": 6}
    assert settings.reserved_roles == {"chat", "lite"}
    assert settings.max_concurrency == 12
    assert settings.mesh_id == "north"
    assert (settings.hold_seconds, settings.ack_after_ms) == (7.5, 0)
    assert (settings.keep_alive_seconds, settings.max_waiting) == (2, 9)
    assert settings.max_total_body_bytes == 5_000_000


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("MESHNET_MESHES", "nowhere"),
        ("MESH_FEDERATION_PEERS", "[{"),
        ("MESH_FEDERATION_PEERS", '{"id": "a"}'),
        ("MESH_FEDERATION_PEERS", "a"),
        ("MESH_PROXY_CONNECT_RETRIES", "-1"),
        ("MESH_PROXY_CONNECT_RETRIES", "many"),
        ("MESH_PROXY_CONNECT_BACKOFF_MS", "0.5"),
        ("GPU_CONCURRENCY_BUDGETS", "gpu=6"),
        ("GPU_CONCURRENCY_BUDGETS", '{"gpu": "six"}'),
        ("GPU_CONCURRENCY_BUDGETS", "[6]"),
        ("GPU_RESERVED_ROLES", "x" * 300),
        ("MODEL_MAX_CONCURRENCY", "0"),
        ("MESHNET_GATEWAY_MESH_ID", "a b"),
        ("MESHNET_GATEWAY_HOLD_SECONDS", "nan"),
        ("MESHNET_GATEWAY_ACK_AFTER_MS", "1.5"),
        ("MESHNET_GATEWAY_KEEP_ALIVE_SECONDS", "0"),
        ("MESHNET_GATEWAY_MAX_TOTAL_BODY_BYTES", "1000"),
        ("MESHNET_GATEWAY_MAX_WAITING", "-1"),
    ],
)
def test_a_fault_in_a_variable_names_it(variable: str, text: str) -> None:
    (fault,) = faults_of({"chat_models": [chat_model()]}, {variable: text})[:1]

    assert fault.startswith(variable)


def test_every_variable_has_a_fault_test() -> None:
    marks = test_a_fault_in_a_variable_names_it.pytestmark  # type: ignore[attr-defined]
    assert {variable for variable, _ in marks[0].args[1]} == set(VARIABLES)


def test_an_empty_variable_counts_as_none_save_that_no_peers_means_none() -> None:
    empty = dict.fromkeys(VARIABLES, "")

    assert read_environment(empty, Faults()) == {"federation_peers": ("MESH_FEDERATION_PEERS", [])}


def test_the_environment_comes_before_the_file() -> None:
    peers = [{"id": "a", "base_url": "http://a:1"}]
    table = {"connect_retries": 1, "max_waiting": 3, "federation_peers": peers}
    environment = {"MESH_PROXY_CONNECT_RETRIES": "2", "MESH_FEDERATION_PEERS": ""}

    settings = settings_of(table, environment)

    assert (settings.connect_retries, settings.max_waiting) == (2, 3)
    assert settings.peers == ()
