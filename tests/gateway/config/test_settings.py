import msgspec
import pytest

from meshnet_gateway.config.settings import Endpoint, Model, Peer, Secret, Settings


def endpoint(group: str = "a", instances: int = 1, calls: int = 1) -> Endpoint:
    return Endpoint(
        base_url="http://a:1",
        gpu_group=group,
        parallel_instances=instances,
        max_parallel_calls=calls,
    )


def test_the_floor_of_a_model_is_the_sum_of_instances_times_calls() -> None:
    model = Model(id="m", endpoints=(endpoint("a", 2, 3), endpoint("b"), endpoint("a", 1, 4)))

    assert model.floor == 11
    assert model.group_floors == {"a": 10, "b": 1}


def test_a_secret_is_never_shown() -> None:
    shown = Endpoint(base_url="http://a:1", gpu_group="a", api_key=Secret("sk-very-secret"))

    assert "very-secret" not in f"{shown} {shown!r} {Settings(mesh_id='m')!r}"
    assert shown.api_key is not None
    assert shown.api_key.value == "sk-very-secret"
    with pytest.raises(TypeError):
        msgspec.json.encode(shown)


def test_a_peer_lists_its_models_or_any() -> None:
    some = Peer(id="p", base_url="http://p:1", models=("a", "b"))

    assert [some.lists(model) for model in ("a", "b", "c")] == [True, True, False]
    assert Peer(id="p", base_url="http://p:1").lists("c")


def test_a_lone_mesh_needs_no_settings() -> None:
    settings = Settings(mesh_id="m")

    assert settings.meshes == ("http://127.0.0.1:8080",)
    assert (settings.models, settings.peers, settings.budgets) == ((), (), {})
    assert settings.model("a") is None


def test_a_model_is_found_by_its_id_and_its_role_reserves_or_not() -> None:
    settings = Settings(mesh_id="m", models=(Model(id="a"), Model(id="b", role="embedding")))

    found = settings.model("b")
    assert found is not None
    assert [settings.reserves(role) for role in ("default", found.role)] == [True, False]


def test_the_same_secret_is_the_same() -> None:
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2
