import pytest

from meshnet_common.openai.apis import APIS, CHAT, COUNTED_APIS, Api
from meshnet_common.openai.document import OPERATIONS
from meshnet_common.openai.errors import ApiError


def test_every_api_is_found_with_and_without_its_version() -> None:
    assert CHAT.url_paths == ("/v1/chat/completions", "/chat/completions")
    assert len({url_path for api in APIS for url_path in api.url_paths}) == 2 * len(APIS)


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.url_path)
def test_every_api_is_documented_and_streams(api: Api) -> None:
    (operation,) = (one for one in OPERATIONS if one.path == api.url_path)
    assert operation.streams


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.url_path)
@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"model": 1}', b"\xff"])
def test_what_is_no_request_is_a_400(api: Api, body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        api.parse(body)
    assert caught.value.status == 400


@pytest.mark.parametrize("api", COUNTED_APIS, ids=lambda api: api.url_path)
def test_what_is_counted_is_documented(api: Api) -> None:
    (operation,) = (one for one in OPERATIONS if one.path == api.counting_paths[0])
    assert not operation.streams
