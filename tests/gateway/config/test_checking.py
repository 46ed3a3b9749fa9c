from typing import Any

import pytest

from meshnet_gateway.config.checking import doubts_of
from tests.gateway.config.builders import chat_model, embedding_model, faults_of, settings_of


def endpoint(**fields: Any) -> dict[str, Any]:
    return {"base_url": "http://a:1", **fields}


def fallback(**fields: Any) -> dict[str, Any]:
    return {"base_url": "http://e2:7997", **fields}


@pytest.mark.parametrize(
    ("table", "place"),
    [
        ({"chat_models": [chat_model(), chat_model()]}, "chat_models[1].id"),
        (
            {
                "chat_models": [chat_model(base_url="http://a:1")],
                "embedding_models": [embedding_model(id="chat")],
            },
            "embedding_models[0].id",
        ),
        (
            {"chat_models": [chat_model(base_url="http://b:1", endpoints=[endpoint()])]},
            "chat_models[0].endpoints",
        ),
        (
            {
                "chat_models": [
                    chat_model(endpoints=[endpoint(), endpoint(base_url="http://a:1/v1")])
                ]
            },
            "chat_models[0].endpoints[1].base_url",
        ),
        ({"chat_models": [chat_model(weight=2)]}, "chat_models[0].weight"),
        ({"chat_models": [chat_model(metrics_url="http://a")]}, "chat_models[0].metrics_url"),
        ({"chat_models": [chat_model(api_key="sk")]}, "chat_models[0].api_key"),
        ({"meshes": [], "chat_models": [chat_model()]}, "chat_models[0]"),
        (
            {"embedding_models": [embedding_model(fallback=fallback(id="other"))]},
            "embedding_models[0].fallback.id",
        ),
        (
            {"embedding_models": [embedding_model(dimensions=8, fallback=fallback(dimensions=9))]},
            "embedding_models[0].fallback.dimensions",
        ),
        (
            {
                "embedding_models": [
                    embedding_model(fallback=fallback(base_url="http://e1:7997/v1"))
                ]
            },
            "embedding_models[0].fallback.base_url",
        ),
        (
            {"embedding_models": [{"id": "embed", "fallback": fallback()}]},
            "embedding_models[0].fallback",
        ),
        ({"mesh_id": "a", "federation_peers": [endpoint(id="a")]}, "federation_peers[0].id"),
        ({"federation_peers": [endpoint(id="a"), endpoint(id="a")]}, "federation_peers[1].id"),
    ],
)
def test_a_contradiction_is_one_fault_at_its_place(table: dict[str, Any], place: str) -> None:
    (fault,) = faults_of(table)

    assert fault.startswith(f"{place}: ")


def test_a_cap_below_a_floor_is_told_with_both_numbers() -> None:
    model = chat_model(
        endpoints=[endpoint(parallel_instances=2, max_parallel_calls=3, max_concurrent_requests=5)]
    )

    (fault,) = faults_of({"chat_models": [model]})

    assert fault.startswith("chat_models[0].endpoints[0].max_concurrent_requests: 5 is below")
    assert "Floor of 6" in fault


def test_the_cap_of_a_fallback_is_checked_as_well() -> None:
    narrow = fallback(parallel_instances=2, max_concurrent_requests=1)

    (fault,) = faults_of({"embedding_models": [embedding_model(fallback=narrow)]})

    assert fault.startswith("embedding_models[0].fallback.max_concurrent_requests: 1 is below")


def test_a_ceiling_below_a_floor_is_told_where_it_was_set() -> None:
    wide = chat_model(base_url="http://a:1", parallel_instances=4)

    assert faults_of({"chat_models": [wide | {"ceiling": 3}]}) == [
        "chat_models[0].ceiling: 3 is below the Floor of `chat`, 4"
    ]
    assert faults_of({"chat_models": [wide]}, {"MODEL_MAX_CONCURRENCY": "3"}) == [
        "MODEL_MAX_CONCURRENCY: 3 is below the Floor of `chat`, 4"
    ]


def test_floors_above_a_budget_are_told_with_both_numbers_and_whose_they_are() -> None:
    table = {
        "gpu_concurrency_budgets": {"gpu": 5, "other": 1},
        "chat_models": [chat_model(endpoints=[endpoint(gpu_group="gpu", parallel_instances=3)])],
        "embedding_models": [
            embedding_model(
                gpu_group="gpu",
                parallel_instances=2,
                fallback=fallback(gpu_group="gpu"),
            )
        ],
    }

    assert faults_of(table) == [
        "gpu_concurrency_budgets.gpu: 5 is below the Floors in this group, 6 in all "
        "(chat 3, embed 2, embedding:fallback of embed 1)"
    ]


def test_floors_that_just_fit_are_no_fault() -> None:
    model = chat_model(
        endpoints=[endpoint(gpu_group="gpu", parallel_instances=3, max_concurrent_requests=3)]
    )

    settings = settings_of(
        {"gpu_concurrency_budgets": {"gpu": 3}, "model_max_concurrency": 3, "chat_models": [model]}
    )

    assert settings.budgets == {"gpu": 3}


def test_a_budget_of_a_group_that_nothing_is_in_is_doubted() -> None:
    models = {
        "chat_models": [
            chat_model(id="a", base_url="http://a:1"),
            chat_model(id="b", gpu_group="b"),
        ],
        "embedding_models": [embedding_model(fallback=fallback(gpu_group="c"))],
    }
    groups = {"gpu_concurrency_budgets": dict.fromkeys(["a", "b", "c", "e1", "typo"], 9)}
    meshes = {"meshes": ["http://tracker:8080"]}

    assert list(doubts_of(settings_of({**models, **groups, **meshes}))) == [
        "gpu_concurrency_budgets.typo: no Endpoint here is in this group, unless a Head Worker is"
    ]
