import pytest

from meshnet_gateway.calibration.target import NoTargetError, choose_target
from meshnet_gateway.config.settings import Endpoint, Model, Settings

A, B = (Endpoint(base_url=f"http://{host}:1", gpu_group=host) for host in "ab")
SETTINGS = Settings(
    mesh_id="home",
    meshes=("http://tracker:8080",),
    models=(
        Model(id="one", endpoints=(A,)),
        Model(id="two", endpoints=(A, B)),
        Model(id="embedder", kind="embedding", endpoints=(A,), fallback=B),
    ),
)


@pytest.mark.parametrize(
    ("model", "url", "endpoint"),
    [
        ("one", None, A),
        ("two", "http://b:1/v1/", B),
        ("two", "HTTP://B:1", B),
        ("embedder", "http://b:1", B),
    ],
)
def test_the_only_endpoint_or_the_one_that_is_named_is_measured(
    model: str, url: str | None, endpoint: Endpoint
) -> None:
    assert choose_target(SETTINGS, model, url)[1] == endpoint


def test_a_model_of_a_mesh_is_measured_through_its_tracker() -> None:
    model, endpoint = choose_target(SETTINGS, "smol", None)

    assert (model.id, model.kind, endpoint.base_url) == ("smol", "chat", "http://tracker:8080")


@pytest.mark.parametrize(
    ("model", "url", "told"),
    [
        ("two", None, "http://a:1, http://b:1"),
        ("one", "http://c:1", "http://a:1"),
        ("one", "", "http://a:1"),
    ],
)
def test_which_ones_there_are_is_told_when_none_is_meant(
    model: str, url: str | None, told: str
) -> None:
    with pytest.raises(NoTargetError, match=told):
        choose_target(SETTINGS, model, url)


def test_without_a_mesh_an_unknown_model_is_nowhere() -> None:
    with pytest.raises(NoTargetError, match="none"):
        choose_target(Settings(mesh_id="home", meshes=()), "smol", None)
