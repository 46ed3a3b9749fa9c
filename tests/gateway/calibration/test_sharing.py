from meshnet_gateway.calibration.sharing import advise_on_sharing
from meshnet_gateway.config.settings import Endpoint, Model, Settings


def endpoint(host: str, group: str = "gpu", instances: int = 1) -> Endpoint:
    return Endpoint(base_url=f"http://{host}", gpu_group=group, parallel_instances=instances)


def chat(*endpoints: Endpoint) -> Model:
    return Model(id="chat", endpoints=endpoints)


def embedder(one: Endpoint, fallback: Endpoint | None = None) -> Model:
    return Model(id="embed", kind="embedding", endpoints=(one,), fallback=fallback)


def advice(*models: Model, knee: int = 4) -> str:
    return "\n".join(advise_on_sharing(Settings(mesh_id="home", models=models), "gpu", knee))


def test_an_endpoint_with_gpus_of_its_own_needs_no_advice() -> None:
    assert advice(chat(endpoint("a")), embedder(endpoint("b", "other"))) == ""


def test_floors_above_the_knee_are_told_with_their_sum() -> None:
    assert "5 in all" in advice(chat(endpoint("a", instances=5)), knee=4)
    assert advice(chat(endpoint("a", instances=4)), knee=4) == ""


def test_a_budget_of_several_endpoints_says_that_it_is_for_all_of_them() -> None:
    assert "all 2 Endpoints" in advice(chat(endpoint("a"), endpoint("b"), endpoint("c", "other")))


def test_chat_and_embeddings_on_the_same_gpus_are_better_parted() -> None:
    assert "gpu_group of its own" in advice(chat(endpoint("a")), embedder(endpoint("a")))


def test_a_fallback_on_the_gpus_of_a_chat_shares_them_as_well() -> None:
    shared = embedder(endpoint("b", "other"), fallback=endpoint("a"))

    assert "gpu_group of its own" in advice(chat(endpoint("a")), shared)
