"""A random model split over Workers equals the whole model in transformers.

Each word of these models' text is one token, so the text tells the token ids. The prompt lengths
lie at the bounds of one prefill chunk.
"""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from demo.local_mesh import LocalMesh
from tests.mesh.harness import chat_body, post, start_equal_workers
from tests.mesh.small_models import ids_of, prompt_of, text_of, whole_model_answer

PROMPT_TOKENS = (1, 127, 128, 129, 300)
ANSWER_TOKENS = 16
SMALLEST_GAP = 1e-3

whole_model = cache(whole_model_answer)


@pytest.fixture(scope="module", params=["random_gpt2", "random_llama"])
def model_folder(request: pytest.FixtureRequest) -> Path:
    folder: Path = request.getfixturevalue(request.param)
    return folder


@pytest.fixture(scope="module", params=[2, 3, 4], ids=lambda count: f"{count}-workers")
def mesh(
    new_mesh: Callable[[], LocalMesh], model_folder: Path, request: pytest.FixtureRequest
) -> Iterator[LocalMesh]:
    mesh = new_mesh()
    mesh.add_preset(model_folder, "small", "--quantization", "float32")
    mesh.start_tracker()
    start_equal_workers(mesh, "small", request.param)
    assert len(mesh.route("small").hops) == request.param
    yield mesh
    mesh.programs.stop_all()


@pytest.mark.parametrize("prompt_tokens", PROMPT_TOKENS)
def test_a_split_model_answers_as_the_whole_one(
    mesh: LocalMesh, model_folder: Path, prompt_tokens: int
) -> None:
    prompt = prompt_of(prompt_tokens)
    expected, smallest_gap = whole_model(model_folder, tuple(prompt), ANSWER_TOKENS)
    assert smallest_gap > SMALLEST_GAP, "a near-tie may be settled either way"
    body = chat_body("small", text_of(prompt), max_tokens=ANSWER_TOKENS)
    reply = post(f"{mesh.tracker_url}/v1/chat/completions", body)
    assert (reply.status, ids_of(reply.text)) == (200, expected)
