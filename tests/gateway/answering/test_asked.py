import pytest

from meshnet_gateway.answering.asked import Asked


def asked(url_path: str = "/v1/chat/completions", body: bytes = b"{}", **fields: bool) -> Asked:
    stream = fields.get("is_stream", False)
    return Asked("smol", stream, url_path, body, headers={}, caller={})


@pytest.mark.parametrize(
    ("url_path", "is_embedding"), [("/v1/embeddings", True), ("/v1/completions", False)]
)
def test_an_embedding_is_known_by_its_path(url_path: str, is_embedding: bool) -> None:
    assert asked(url_path).is_embedding == is_embedding
