import msgspec
import pytest

from meshnet_common.openai.embeddings import MAX_INPUT_TOKENS, EmbeddingRequest
from meshnet_common.openai.errors import ApiError
from meshnet_common.openai.text_inputs import Texts, TokenLists
from meshnet_common.presets import ModelPreset
from meshnet_worker.embeddings import check_kind, read_inputs
from tests.tracker.builders import preset

ENCODER: ModelPreset = msgspec.structs.replace(preset(layers=1).preset, architecture="BertModel")
"""It takes 256 tokens from a vocabulary of 100, and makes 16 dimensions."""


def asked(dimensions: int | None = None) -> EmbeddingRequest:
    return EmbeddingRequest(model="tiny", inputs=("a",), dimensions=dimensions)


@pytest.mark.parametrize("dimensions", [None, 16])
def test_an_encoder_makes_vectors_of_its_own_size(dimensions: int | None) -> None:
    check_kind(asked(dimensions), ENCODER)


@pytest.mark.parametrize(
    ("dimensions", "model", "param"),
    [(8, ENCODER, "dimensions"), (32, ENCODER, "dimensions"), (None, preset().preset, "model")],
)
def test_other_sizes_and_other_models_are_refused(
    dimensions: int | None, model: ModelPreset, param: str
) -> None:
    with pytest.raises(ApiError) as refused:
        check_kind(asked(dimensions), model)
    assert (refused.value.status, refused.value.body.param) == (400, param)


def read(inputs: Texts | TokenLists) -> list[tuple[int, ...]]:
    """Read inputs, of which each character of a text is a token."""
    request = EmbeddingRequest(model="tiny", inputs=inputs)
    return read_inputs(request, lambda text: [1] * len(text), ENCODER)


def test_texts_up_to_the_context_are_taken() -> None:
    assert read(((99,) * 256, (0,))) == [(99,) * 256, (0,)]
    assert read(("a" * 256,)) == [(1,) * 256]


def test_of_a_text_that_is_clearly_too_long_only_the_beginning_is_read() -> None:
    with pytest.raises(ApiError, match=r"`input` has at least 4096 tokens"):
        read(("a" * 4_000_000,))


@pytest.mark.parametrize(
    ("texts", "param", "code"),
    [
        ([[1] * 257], "input", "context_length_exceeded"),
        ([[1], [1] * 257], "input[1]", "context_length_exceeded"),
        ([[100]], "input", None),
        ([[1] * 256] * (MAX_INPUT_TOKENS // 256 + 1), "input", None),
    ],
)
def test_what_the_model_cannot_take_is_refused(
    texts: list[list[int]], param: str, code: str | None
) -> None:
    with pytest.raises(ApiError) as refused:
        read(tuple(map(tuple, texts)))
    body = refused.value.body
    assert (refused.value.status, body.param, body.code) == (400, param, code)
