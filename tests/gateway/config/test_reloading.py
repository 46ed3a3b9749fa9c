from hypothesis import given
from hypothesis import strategies as st

from meshnet_gateway.config.reloading import Changes, EndpointKey, changes_between
from meshnet_gateway.config.settings import Endpoint, Model, Peer, Settings

ENDPOINTS = st.builds(
    Endpoint,
    base_url=st.sampled_from(["http://a:1", "http://b:1", "http://c:1"]),
    gpu_group=st.just("gpu"),
    parallel_instances=st.integers(1, 2),
)
MODELS = st.builds(
    Model,
    id=st.sampled_from("mn"),
    endpoints=st.lists(ENDPOINTS, max_size=3, unique_by=lambda one: one.base_url).map(tuple),
)
SETTINGS = st.builds(
    Settings,
    mesh_id=st.just("home"),
    models=st.lists(MODELS, max_size=2, unique_by=lambda model: model.id).map(tuple),
    budgets=st.dictionaries(st.sampled_from("xyz"), st.integers(1, 3)),
)


def settings_with(*endpoints: Endpoint, fallback: Endpoint | None = None) -> Settings:
    model = Model(id="m", endpoints=endpoints, fallback=fallback)
    return Settings(mesh_id="home", models=(model,))


def endpoint(host: str, instances: int = 1) -> Endpoint:
    return Endpoint(base_url=f"http://{host}:1", gpu_group=host, parallel_instances=instances)


def keys_of(settings: Settings) -> set[EndpointKey]:
    return {
        EndpointKey(model.id, one.base_url) for model in settings.models for one in model.endpoints
    }


@given(SETTINGS, SETTINGS)
def test_what_joined_and_left_leads_from_the_old_settings_to_the_new(
    old: Settings, new: Settings
) -> None:
    changes = changes_between(old, new)

    assert (keys_of(old) - set(changes.left)) | set(changes.joined) == keys_of(new)
    assert not set(changes.joined) & keys_of(old)
    assert set(changes.altered) <= keys_of(old) & keys_of(new)
    budgets = {**old.budgets, **changes.budgets}
    assert {name: cap for name, cap in budgets.items() if cap is not None} == new.budgets
    assert bool(changes) == (old != new)


def test_settings_that_are_the_same_change_nothing() -> None:
    settings = settings_with(endpoint("a"), fallback=endpoint("b"))

    assert changes_between(settings, settings) == Changes()


def test_an_endpoint_with_other_figures_is_altered_and_keeps_its_place() -> None:
    old, new = (settings_with(endpoint("a", number), endpoint("b")) for number in (1, 2))

    assert changes_between(old, new).altered == (EndpointKey("m", "http://a:1"),)
    assert changes_between(old, new).fields == ("models",)


def test_a_fallback_that_becomes_an_endpoint_stays_where_it_is() -> None:
    old = settings_with(endpoint("a"), fallback=endpoint("b"))
    new = settings_with(endpoint("a"), endpoint("b"))

    changes = changes_between(old, new)
    assert (changes.joined, changes.left, changes.altered) == ((), (), ())
    assert changes.fields == ("models",)


def test_other_fields_are_named() -> None:
    old = Settings(mesh_id="home")
    peer = Peer(id="p", base_url="http://p:1")
    new = Settings(mesh_id="home", peers=(peer,), meshes=(), max_waiting=1)

    assert changes_between(old, new).fields == ("meshes", "peers", "max_waiting")


def test_a_budget_that_is_gone_is_none() -> None:
    old = Settings(mesh_id="home", budgets={"a": 1, "b": 2})
    new = Settings(mesh_id="home", budgets={"b": 2, "c": 3})

    assert changes_between(old, new).budgets == {"a": None, "c": 3}


def test_the_log_tells_only_what_has_changed() -> None:
    old = Settings(mesh_id="home", models=settings_with(endpoint("a")).models, budgets={"x": 1})
    new = Settings(mesh_id="home", models=settings_with(endpoint("b")).models)

    assert changes_between(old, new).facts() == {
        "fields": "models, budgets",
        "joined": "m at http://b:1",
        "left": "m at http://a:1",
        "budgets": "x none",
    }
    assert changes_between(old, old).facts() == {}
