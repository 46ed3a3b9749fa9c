import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModel,
    BertConfig,
    DistilBertConfig,
    MPNetConfig,
    PreTrainedConfig,
    RobertaConfig,
    XLMRobertaConfig,
)

from meshnet_common.presets import ENCODERS
from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine.checkpoint import CheckpointError
from meshnet_worker.engine.encoder import WHOLE, Encoder, is_encoder
from meshnet_worker.engine.shard import ShardSource

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 66,
}
CONFIGS: dict[str, PreTrainedConfig] = {
    "BertModel": BertConfig(**SIZES),
    "DistilBertModel": DistilBertConfig(
        vocab_size=100, dim=32, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=66
    ),
    "MPNetModel": MPNetConfig(**SIZES),
    "RobertaModel": RobertaConfig(**SIZES),
    "XLMRobertaModel": XLMRobertaConfig(**SIZES),
}
TEXTS = [torch.tensor(ids) for ids in ([5, 6, 7], [8], [9, 10, 11, 12, 13], [5, 6, 7])]


def save(folder: Path, config: PreTrainedConfig, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    AutoModel.from_config(config).save_pretrained(folder)
    return folder


def pooled(folder: Path, mode: str, *more: str) -> Path:
    """Write down how vectors are pooled, as sentence-transformers does."""
    kinds = ["Transformer", "Pooling", *more]
    modules = [{"type": f"sentence_transformers.models.{kind}"} for kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    modes = {"pooling_mode_mean_tokens": False, "word_embedding_dimension": 32, mode: True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    return folder


def opened(folder: Path, dtype: torch.dtype = torch.float32) -> Encoder:
    encoder = Encoder(ShardSource(str(folder), dtype, CPU))
    encoder.check_loadable(WHOLE)
    assert sum(encoder.load(WHOLE)) > 0
    return encoder


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("bert"), CONFIGS["BertModel"])


def test_every_architecture_that_counts_as_an_encoder_is_tried_here() -> None:
    assert set(CONFIGS) == set(ENCODERS)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_text_alone_and_among_others_has_the_same_vector(tmp_path: Path, name: str) -> None:
    encoder = opened(save(tmp_path, CONFIGS[name]))
    assert is_encoder(str(tmp_path))
    together = encoder.encode(TEXTS)
    alone = torch.cat([encoder.encode([text]) for text in TEXTS])
    assert together.shape == (4, 32)
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)
    assert torch.equal(together[0], together[3])
    assert not torch.allclose(together[0], together[1])


@pytest.mark.parametrize("name", CONFIGS)
def test_the_longest_text_that_is_promised_can_be_encoded(tmp_path: Path, name: str) -> None:
    longest = torch.arange(66 - ENCODERS[name]) % 90 + 5
    assert torch.isfinite(opened(save(tmp_path, CONFIGS[name])).encode([longest])).all()


@pytest.mark.parametrize("mode", ["mean_tokens", "cls_token", "max_tokens"])
def test_vectors_are_pooled_as_the_folder_says(tmp_path: Path, mode: str) -> None:
    save(tmp_path, CONFIGS["BertModel"])
    plain = AutoModel.from_pretrained(tmp_path)(TEXTS[0].unsqueeze(0)).last_hidden_state[0]
    wanted = {
        "mean_tokens": plain.mean(dim=0),
        "cls_token": plain[0],
        "max_tokens": plain.amax(dim=0),
    }[mode].detach()
    pooled(tmp_path, f"pooling_mode_{mode}", "Normalize")
    vector = opened(tmp_path).encode(TEXTS)[0]
    torch.testing.assert_close(vector, wanted / wanted.norm(), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("mode", "more"),
    [
        ("pooling_mode_lasttoken", []),
        ("pooling_mode_mean_tokens", ["Dense"]),
        ("pooling_mode_mean_tokens", ["Normalize", "Dense"]),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(tmp_path: Path, mode: str, more: list[str]) -> None:
    folder = pooled(save(tmp_path, CONFIGS["BertModel"]), mode, *more)
    with pytest.raises(CheckpointError, match=more[-1] if more else "lasttoken"):
        Encoder(ShardSource(str(folder), torch.float32, CPU))


def test_a_folder_without_pooling_beside_its_modules_is_refused(tmp_path: Path) -> None:
    folder = pooled(save(tmp_path, CONFIGS["BertModel"]), "pooling_mode_cls_token")
    (folder / "1_Pooling" / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json"):
        Encoder(ShardSource(str(folder), torch.float32, CPU))


def test_an_encoder_is_whole_or_not_there(bert: Path) -> None:
    encoder = Encoder(ShardSource(str(bert), torch.float32, CPU))
    with pytest.raises(ValueError, match="whole"):
        encoder.check_loadable(ShardRange(0, 2))
    with pytest.raises(ValueError, match="not loaded"):
        encoder.encode(TEXTS)


def test_what_was_dropped_is_not_there_and_can_be_loaded_again(bert: Path) -> None:
    encoder = opened(bert)
    before = encoder.encode(TEXTS)
    encoder.drop(WHOLE)
    assert encoder.loaded is None
    list(encoder.load(WHOLE))
    assert torch.equal(encoder.encode(TEXTS), before)


def test_sizes_are_those_on_the_device(bert: Path) -> None:
    encoder = opened(bert, torch.bfloat16)
    tables = (100 + 66 + 2) * 32 * 2
    assert encoder.bytes_of(WHOLE) - encoder.layer_bytes_of(WHOLE) == tables
    assert encoder.hidden_size == 32
    assert encoder.encode(TEXTS).dtype is torch.float32


def test_other_models_and_empty_folders_are_no_encoders(tmp_path: Path) -> None:
    assert not is_encoder(str(tmp_path))
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    assert not is_encoder(str(tmp_path))
