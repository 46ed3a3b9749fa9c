"""Models that run otherwise than most are served by a real Mesh with exactly transformers' ids.

Bloom's attention and Mamba's state go Session by Session through transformers' own Cache; OPT calls
its Layers with named arguments only.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from transformers import BloomConfig, MambaConfig, OPTConfig, PretrainedConfig

from demo.local_mesh import LocalMesh
from tests.mesh.harness import chat_body, post, start_equal_workers
from tests.mesh.small_models import (
    CONTEXT_TOKENS,
    END_ID,
    WORDS,
    ids_of,
    prompt_of,
    save_random_model,
    text_of,
    whole_model_answer,
)

LAYERS = 3
WORKERS = 3
PROMPT_TOKENS = (5, 140)
ANSWER_TOKENS = 8
SMALLEST_GAP = 1e-3

ENDS: dict[str, Any] = {"bos_token_id": END_ID, "eos_token_id": END_ID, "pad_token_id": END_ID}

CONFIGS: dict[str, PretrainedConfig] = {
    "bloom": BloomConfig(
        vocab_size=WORDS,
        hidden_size=128,
        n_layer=LAYERS,
        n_head=4,
        initializer_range=0.15,
        **ENDS,
    ),
    "mamba": MambaConfig(
        vocab_size=WORDS,
        hidden_size=128,
        num_hidden_layers=LAYERS,
        state_size=8,
        initializer_range=0.15,
        tie_word_embeddings=False,
        **ENDS,
    ),
    "opt": OPTConfig(
        vocab_size=WORDS,
        hidden_size=256,
        ffn_dim=512,
        word_embed_proj_dim=256,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        max_position_embeddings=CONTEXT_TOKENS,
        init_std=0.15,
        **ENDS,
    ),
}


@pytest.fixture(scope="module", params=CONFIGS)
def served(
    request: pytest.FixtureRequest,
    new_mesh: Callable[[], LocalMesh],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[LocalMesh, Path]]:
    folder = save_random_model(
        CONFIGS[request.param], tmp_path_factory.mktemp("models") / request.param
    )
    mesh = new_mesh()
    mesh.add_preset(folder, "small", "--quantization", "float32")
    mesh.start_tracker()
    start_equal_workers(mesh, "small", WORKERS)
    yield mesh, folder
    mesh.programs.stop_all()


def test_answers_at_once_are_the_whole_models(served: tuple[LocalMesh, Path]) -> None:
    mesh, folder = served
    assert len(mesh.route("small").hops) == WORKERS

    def answer(prompt_tokens: int) -> list[int]:
        body = chat_body("small", text_of(prompt_of(prompt_tokens)), max_tokens=ANSWER_TOKENS)
        return ids_of(post(f"{mesh.tracker_url}/v1/chat/completions", body).text)

    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(answer, PROMPT_TOKENS))
    for prompt_tokens, ids in zip(PROMPT_TOKENS, answers, strict=True):
        expected, gap = whole_model_answer(folder, tuple(prompt_of(prompt_tokens)), ANSWER_TOKENS)
        assert gap > SMALLEST_GAP, "a near-tie may be settled either way"
        assert ids == expected
