import msgspec
import pytest

from meshnet_common.openai.errors import ApiError
from meshnet_gateway.federation.via import check_via, federation_loop, read_via, write_via


@pytest.mark.parametrize(
    ("header", "via"),
    [(None, ()), ("", ()), ("a", ("a",)), (" a ,b,, ", ("a", "b"))],
)
def test_the_header_names_the_meshes_in_their_order(
    header: str | None, via: tuple[str, ...]
) -> None:
    assert read_via(header) == via


def test_a_mesh_puts_itself_last() -> None:
    assert write_via((), "a") == "a"
    assert read_via(write_via(("a", "b"), "c")) == ("a", "b", "c")


def test_a_request_that_was_here_before_is_refused_and_not_to_be_sent_again() -> None:
    with pytest.raises(ApiError) as caught:
        check_via(("a", "b"), "a")

    error = msgspec.json.decode(caught.value.to_json())["error"]
    assert (caught.value.status, error["code"]) == (508, "federation_loop")
    assert "a, b" in error["message"]
    assert caught.value.headers == {"x-should-retry": "false"}


def test_a_request_that_was_elsewhere_is_let_through() -> None:
    check_via(("a", "b"), "c")


def test_a_long_way_does_not_make_a_long_answer() -> None:
    assert len(federation_loop("no", ("a" * 64,) * 100).to_json()) < 700
