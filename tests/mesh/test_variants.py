"""Quantized Variants: their sizes are the preset's, and Workers that share one answer as one does.

Each word of these models' text is one token, so the text tells the token ids.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from transformers import AutoModelForCausalLM

from demo.local_mesh import HEADROOM_SHARE, LocalMesh
from meshnet_common.presets import DTYPE_BYTES, ModelPreset, Variant
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.presets.checkpoint import make_preset
from meshnet_tracker.presets.folder import read_folder
from meshnet_tracker.presets.gguf_file import read_gguf_variant
from meshnet_worker.engine.attention import FlatSegment
from meshnet_worker.engine.kv import SessionKv
from meshnet_worker.engine.shard import Shard, ShardSource
from tests.mesh.small_models import LAYERS, ids_of, prompt_of, text_of
from tests.worker.engine.gguf_models import randomly, save_gguf

WHOLE = ShardRange(0, LAYERS)
PROMPT_TOKENS = 140
ANSWER_TOKENS = 12
KINDS = {"q8_0": "Q8_0", "q4_1": "Q4_1", "q4k": "Q4_K"}


def gguf_file(model_folder: Path, folder: Path, quantization: str) -> Path:
    """Write a model's weights as a GGUF file; those of Q4_K are random."""
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    file = folder / f"{quantization}.gguf"
    kind = GGMLQuantizationType[KINDS[quantization]]
    if quantization == "q4k":
        return save_gguf(model, file, kind, randomly)
    return save_gguf(model, file, kind)


def shard_of(preset: ModelPreset, variant: Variant) -> Shard:
    """Load a whole Variant as one Worker's engine does."""
    dtype = getattr(torch, variant.wire_dtype)
    shard = Shard(
        ShardSource(preset.source, dtype, torch.device("cpu"), variant.quantization, variant.gguf)
    )
    for _ in shard.load(WHOLE):
        pass
    return shard


def one_worker_answer(preset: ModelPreset, variant: Variant, prompt: list[int]) -> list[int]:
    """Answer greedily in chunks of 128, with one row for the output head, as a Worker does."""
    shard = shard_of(preset, variant)
    kv = SessionKv.alone(PROMPT_TOKENS + ANSWER_TOKENS, range(LAYERS))

    def run(ids: list[int], start: int) -> int:
        segments = [FlatSegment(kv, 0, len(ids), start)]
        return int(shard.run(WHOLE, torch.tensor(ids), segments, (len(ids) - 1,)).argmax())

    run(prompt[:128], 0)
    answer = [run(prompt[128:], 128)]
    while len(answer) < ANSWER_TOKENS:
        answer.append(run(answer[-1:], len(prompt) + len(answer) - 1))
    return answer


def check_sizes(preset: ModelPreset, variant: Variant) -> None:
    shard = shard_of(preset, variant)
    for layer, size in enumerate(variant.layer_bytes):
        measured = shard.layer_bytes_of(ShardRange(layer, layer + 1))
        assert measured == pytest.approx(size, rel=0.05)


@pytest.mark.parametrize("quantization", [*DTYPE_BYTES, "int8", "nf4"])
@pytest.mark.parametrize("model", ["random_llama", "random_gpt2"])
def test_layers_take_what_the_preset_says(
    model: str, quantization: str, request: pytest.FixtureRequest
) -> None:
    checkpoint = read_folder(request.getfixturevalue(model))
    preset = make_preset(checkpoint, "small", (quantization,)).preset
    check_sizes(preset, preset.variants[0])


@pytest.mark.parametrize("quantization", KINDS)
def test_layers_of_a_gguf_file_take_what_the_preset_says(
    quantization: str, random_llama: Path, tmp_path: Path
) -> None:
    record = make_preset(read_folder(random_llama), "small")
    variant = read_gguf_variant(record, gguf_file(random_llama, tmp_path, quantization))
    assert variant.quantization == quantization
    check_sizes(record.preset, variant)


def start_two_workers(mesh: LocalMesh, quantization: str) -> None:
    """Start Workers that hold half of this Variant each, and wait until it is served."""
    preset = mesh.preset("small")
    variant = preset.variant(quantization)
    assert variant is not None
    half = LAYERS // 2 * variant.bytes_per_layer
    size = round((half + variant.embedding_bytes + variant.head_bytes) / (1 - HEADROOM_SHARE))
    for number in (1, 2):
        mesh.start_worker(f"worker-{number}", size + 1)
    mesh.wait_until_served(preset.public_name(quantization))


@pytest.fixture(scope="module", params=["int8", "q4_1"])
def served(
    new_mesh: Callable[[], LocalMesh],
    random_llama: Path,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[tuple[LocalMesh, str]]:
    """A Mesh of two Workers, and the quantization that it serves."""
    mesh = new_mesh()
    quantization: str = request.param
    if quantization == "q4_1":
        # Of the default Variant these Workers could not hold a single Layer.
        mesh.add_preset(random_llama, "small", "--quantization", "float32")
        file = gguf_file(random_llama, tmp_path_factory.mktemp("gguf"), quantization)
        mesh.add_preset(file, "small")
    else:
        mesh.add_preset(random_llama, "small", "--quantization", quantization)
    mesh.start_tracker()
    start_two_workers(mesh, quantization)
    yield mesh, quantization
    mesh.programs.stop_all()


def test_two_workers_stream_what_one_would_answer(served: tuple[LocalMesh, str]) -> None:
    mesh, quantization = served
    preset = mesh.preset("small")
    variant = preset.variant(quantization)
    assert variant is not None
    public_name = preset.public_name(quantization)
    assert len(mesh.route(public_name).hops) == 2
    prompt = prompt_of(PROMPT_TOKENS)
    chunks = mesh.client().chat.completions.create(
        model=public_name,
        messages=[{"role": "user", "content": text_of(prompt)}],
        max_tokens=ANSWER_TOKENS,
        temperature=0,
        stream=True,
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert ids_of(text) == one_worker_answer(preset, variant, prompt)
