from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.openai.errors import ApiError
from meshnet_gateway.config.settings import Peer
from meshnet_gateway.federation.peers import Federation, Presence
from meshnet_gateway.federation.via import write_via


def peer(
    name: str, models: tuple[str, ...] = ("*",), priority: int = 0, weight: float = 1.0
) -> Peer:
    return Peer(
        id=name, base_url=f"http://{name}:1", models=models, priority=priority, weight=weight
    )


def federation(*peers: Peer) -> Federation:
    return Federation("home", peers)


def chosen(of: Federation, presence: Presence = Presence.UNKNOWN, via: str = "") -> str | None:
    found = of.choose("m", presence, tuple(via.split()))
    return found.id if found else None


def refusal(of: Federation, via: str = "", presence: Presence = Presence.UNKNOWN) -> str | None:
    with pytest.raises(ApiError) as caught:
        of.choose("m", presence, tuple(via.split()))
    return caught.value.body.code


@pytest.mark.parametrize(
    ("presence", "place"),
    [(Presence.RESIDENT, None), (Presence.LOADABLE, "p"), (Presence.UNKNOWN, "p")],
)
def test_the_order_is_resident_here_then_a_peer_then_loaded_here(
    presence: Presence, place: str | None
) -> None:
    assert chosen(federation(peer("p")), presence) == place
    assert chosen(federation(), Presence.LOADABLE) is None


def test_a_lone_mesh_does_not_know_what_it_does_not_have() -> None:
    assert refusal(federation()) == "model_not_found"
    assert refusal(federation(peer("p", models=("other",)))) == "model_not_found"


def test_a_peer_gets_what_it_lists() -> None:
    of = federation(peer("p", models=("other",)), peer("q", models=("x", "m")))

    assert {chosen(of) for _ in range(4)} == {"q"}


def test_the_lowest_priority_comes_first_while_one_of_it_is_fit() -> None:
    of = federation(peer("p", priority=2), peer("q", priority=1), peer("r", priority=1))

    def counted(*unfit: str) -> Mapping[str, int]:
        found = [of.choose("m", Presence.UNKNOWN, (), unfit) for _ in range(4)]
        return Counter(one.id for one in found if one)

    assert counted() == {"q": 2, "r": 2}
    assert counted("q") == {"r": 4}
    assert counted("q", "r") == {"p": 4}


def test_those_that_are_left_share_when_one_does_not_serve_a_model() -> None:
    of = federation(peer("p"), peer("q"), peer("r"))

    found = [of.choose("m", Presence.UNKNOWN, (), barred={"p"}) for _ in range(4)]
    assert Counter(one.id for one in found if one) == {"q": 2, "r": 2}
    with pytest.raises(ApiError):
        of.choose("m", Presence.UNKNOWN, (), barred={"p", "q", "r"})


def test_a_cold_peer_is_better_than_none() -> None:
    found = federation(peer("p")).choose("m", Presence.UNKNOWN, (), unfit={"p"})

    assert found is not None
    assert found.id == "p"


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 40))
def test_weights_are_shares_among_equals(weights: list[int], choices: int) -> None:
    of = federation(*(peer(str(index), weight=weight) for index, weight in enumerate(weights)))

    counts = Counter(chosen(of) for _ in range(choices))

    for index, weight in enumerate(weights):
        assert abs(counts[str(index)] - choices * weight / sum(weights)) <= 1


def test_a_request_that_comes_back_is_refused_even_if_it_could_be_answered() -> None:
    assert refusal(federation(peer("p")), "home p", Presence.RESIDENT) == "federation_loop"


def test_a_request_does_not_go_back_where_it_came_from() -> None:
    assert refusal(federation(peer("p", ("m",))), "p") == "federation_loop"
    assert chosen(federation(peer("p"), peer("q")), via="p") == "q"
    assert chosen(federation(peer("p")), Presence.LOADABLE, via="p") is None


@pytest.mark.parametrize("models", [("*",), ("*", "other")])
def test_what_only_those_that_asked_are_thought_to_have_nobody_has(models: tuple[str, ...]) -> None:
    of = federation(peer("p", models), peer("q", models))

    assert refusal(of, "p q") == refusal(federation(peer("p", models)), "p") == "model_not_found"
    assert refusal(of, "q r") == refusal(of, "q home") == "federation_loop"


def test_after_two_passes_a_request_goes_no_further() -> None:
    of = federation(peer("r"))

    assert chosen(of, via="p") == "r"
    assert refusal(of, "p q") == "federation_loop"
    assert chosen(of, Presence.RESIDENT, "p q") is None
    assert chosen(of, Presence.LOADABLE, "p q") is None


@given(st.data())
def test_however_meshes_list_each_other_no_request_is_passed_on_more_than_twice(
    data: st.DataObject,
) -> None:
    names = "abcd"
    meshes = {
        name: Federation(
            name, tuple(peer(other) for other in data.draw(st.sets(st.sampled_from(names))))
        )
        for name in names
    }
    at, via, passes = data.draw(st.sampled_from(names)), tuple[str, ...](), 0

    while True:
        try:
            found = meshes[at].choose("m", Presence.UNKNOWN, via)
        except ApiError:
            break
        assert found is not None
        via, at, passes = tuple(write_via(via, at).split(", ")), found.id, passes + 1

    assert passes <= 2
