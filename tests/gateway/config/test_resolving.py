from typing import Any

import pytest

from meshnet_gateway.config.settings import Endpoint, Model, Secret
from tests.gateway.config.builders import chat_model, embedding_model, faults_of, settings_of


def model_of(
    model: dict[str, Any], environment: dict[str, str] | None = None, **others: Any
) -> Model:
    return settings_of({"chat_models": [model], **others}, environment).models[0]


def test_a_base_url_is_short_for_one_endpoint() -> None:
    short = model_of(chat_model(base_url="http://a:1/v1", weight=2, metrics_url="http://a:1/m"))
    long = model_of(
        chat_model(
            endpoints=[{"base_url": "http://a:1", "weight": 2, "metrics_url": "http://a:1/m"}]
        )
    )

    assert short.endpoints == long.endpoints
    assert short.endpoints == (
        Endpoint(base_url="http://a:1", gpu_group="a", weight=2, metrics_url="http://a:1/m"),
    )


def test_an_endpoint_takes_over_what_its_model_says() -> None:
    model = model_of(
        chat_model(
            gpu_group="gpu",
            parallel_instances=2,
            max_parallel_calls=3,
            max_concurrent_requests=9,
            api_key="sk",
            endpoints=[
                {"base_url": "http://a:1"},
                {"base_url": "http://b:1", "gpu_group": "other", "max_parallel_calls": 1},
            ],
        )
    )

    first, second = model.endpoints
    assert (first.gpu_group, first.floor, first.max_concurrent_requests) == ("gpu", 6, 9)
    assert (second.gpu_group, second.floor) == ("other", 2)
    assert first.api_key == second.api_key == Secret("sk")


def test_without_a_group_endpoints_of_one_host_share_one() -> None:
    model = model_of(
        chat_model(endpoints=[{"base_url": f"http://{at}"} for at in ("a:1", "a:2", "b:1")])
    )

    assert [endpoint.gpu_group for endpoint in model.endpoints] == ["a", "a", "b"]


def test_a_fallback_takes_nothing_over_from_its_model() -> None:
    fallback = {"base_url": "http://e2:1", "fallback": {"base_url": "nonsense"}, "role": "any"}
    model = embedding_model(
        gpu_group="gpu", parallel_instances=4, api_key="sk", dimensions=384, fallback=fallback
    )

    (embeds,) = settings_of({"embedding_models": [model]}).models

    assert (embeds.kind, embeds.role, embeds.dimensions) == ("embedding", "embedding", 384)
    assert embeds.fallback == Endpoint(base_url="http://e2:1", gpu_group="e2")


def test_the_dimension_may_stand_beside_either() -> None:
    model = embedding_model(fallback={"base_url": "http://e2:1", "dimensions": 384})

    assert settings_of({"embedding_models": [model]}).models[0].dimensions == 384


@pytest.mark.parametrize(
    ("own", "everybodys", "floor", "ceiling"),
    [
        (None, None, 1, 200),
        (None, None, 300, 300),
        (7, None, 1, 7),
        (None, 9, 1, 9),
        (7, 9, 1, 7),
        (9, 7, 1, 7),
    ],
)
def test_a_ceiling_only_narrows(
    own: int | None, everybodys: int | None, floor: int, ceiling: int
) -> None:
    model = chat_model(base_url="http://a:1", parallel_instances=floor)
    table = {"chat_models": [model | ({"ceiling": own} if own else {})]}
    if everybodys:
        table["model_max_concurrency"] = everybodys  # type: ignore[assignment]

    assert settings_of(table).models[0].ceiling == ceiling


def test_a_model_holds_as_long_as_all_do_unless_it_says_otherwise() -> None:
    models = [chat_model(id="a"), chat_model(id="b", hold_seconds=0)]

    settings = settings_of({"hold_seconds": 9, "chat_models": models})

    assert [model.hold_seconds for model in settings.models] == [9, 0]
    assert settings.unnamed_model("c").hold_seconds == 9


def test_what_a_mesh_finds_for_a_model_is_as_the_model_says() -> None:
    model = model_of(chat_model(parallel_instances=2, max_concurrent_requests=5))

    assert model.found.at("http://h:7000") == Endpoint(
        base_url="http://h:7000",
        gpu_group="h",
        parallel_instances=2,
        max_concurrent_requests=5,
    )


def test_a_key_may_be_in_a_variable() -> None:
    model = model_of(chat_model(base_url="http://a:1", api_key_env="KEY"), {"KEY": "sk\n"})

    assert model.endpoints[0].api_key == Secret("sk")


def test_a_variable_that_is_not_there_is_a_fault() -> None:
    model = chat_model(base_url="http://a:1", api_key_env="KEY")

    assert faults_of({"chat_models": [model]}) == [
        "chat_models[0].api_key_env: there is no variable KEY"
    ]


@pytest.mark.parametrize("key", ["two\nlines", "schlüssel"])
def test_a_key_that_no_header_may_hold_is_a_fault_and_not_repeated(key: str) -> None:
    model = chat_model(base_url="http://a:1", api_key=key)

    assert faults_of({"chat_models": [model]}) == [
        "chat_models[0].api_key: this key holds what no header may"
    ]


def test_a_key_stands_in_one_place() -> None:
    peer = {"id": "p", "base_url": "http://p:1", "api_key": "sk", "api_key_env": "KEY"}

    assert faults_of({"federation_peers": [peer]}, {"KEY": "sk"}) == [
        "federation_peers[0].api_key: give it or api_key_env, not both"
    ]


@pytest.mark.parametrize(
    ("table", "meshes"),
    [
        ({}, ("http://127.0.0.1:8080",)),
        ({"chat_models": [chat_model()]}, ("http://127.0.0.1:8080",)),
        ({"chat_models": [chat_model(base_url="http://a:1")]}, ()),
        ({"meshes": []}, ()),
        ({"meshes": ["http://a:1/", "http://b:1/v1", "http://a:1"]}, ("http://a:1", "http://b:1")),
    ],
)
def test_there_is_one_mesh_unless_something_else_is_said(
    table: dict[str, Any], meshes: tuple[str, ...]
) -> None:
    assert settings_of(table).meshes == meshes
