"""An encoder: a small model that makes one vector of a text; held whole, as the one Layer of it.

How the token vectors become one is read from the folder, as the library sentence-transformers
writes it down: `modules.json`, and `config.json` of its pooling. Without those it is the mean.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel, PreTrainedModel

from meshnet_common.presets import ENCODERS
from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine.checkpoint import CheckpointError
from meshnet_worker.engine.shard import ShardSource

POOLING_FOLDER = "1_Pooling"
WHOLE = ShardRange(0, 1)

Pool = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From token vectors `[texts, tokens, hidden]` and mask `[texts, tokens]` to `[texts, hidden]`."""


class Encoder:
    """One encoder on the device; it has a Shard's ways of being loaded and dropped."""

    def __init__(self, source: ShardSource) -> None:
        self.loaded: ShardRange | None = None
        self._source = source
        self._pool, self._normalizes = _read_pooling(Path(source.folder))
        self._model: PreTrainedModel | None = None
        self._sizes = [path.stat().st_size for path in Path(source.folder).glob("*.safetensors")]

    @property
    def hidden_size(self) -> int:
        assert self._model is not None
        return int(self._model.config.hidden_size)

    def check_loadable(self, shard_range: ShardRange) -> None:
        """Raise ValueError for anything but the whole."""
        if shard_range != WHOLE:
            raise ValueError(f"{shard_range} is asked of an encoder, which is whole or not there")

    def load(self, shard_range: ShardRange) -> Iterator[int]:
        """Load it in one step, whose bytes are yielded; raises what transformers raises."""
        model = AutoModel.from_pretrained(
            self._source.folder,
            dtype=self._source.dtype,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
        )
        self._model = model.to(self._source.device).eval()
        yield self.layer_bytes_of(shard_range)
        self.loaded = shard_range

    def drop(self, shard_range: ShardRange) -> None:
        """Give its memory back."""
        self.check_loadable(shard_range)
        self.loaded = self._model = None

    def unload_unfinished(self) -> None:
        """Give back what a load that failed has left."""
        if self.loaded is None:
            self._model = None

    def bytes_of(self, _shard_range: ShardRange) -> int:
        """Size on the device, or of its files before it is loaded."""
        if self._model is None:
            return sum(self._sizes)
        return sum(tensor.nbytes for tensor in self._model.parameters())

    def layer_bytes_of(self, _shard_range: ShardRange) -> int:
        """The same without the embedding tables."""
        if self._model is None:
            return 0
        tables = [m.weight for m in self._model.modules() if isinstance(m, torch.nn.Embedding)]
        return self.bytes_of(WHOLE) - sum(table.nbytes for table in tables)

    @torch.inference_mode()
    def encode(self, texts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Make a vector of each text's token ids; returns float32 `[texts, hidden]` on the CPU.

        Raises ValueError if it is not loaded.
        """
        if self._model is None:
            raise ValueError("the encoder is not loaded")
        ids = pad_sequence(list(texts), batch_first=True)
        mask = pad_sequence([torch.ones_like(text) for text in texts], batch_first=True)
        ids, mask = ids.to(self._source.device), mask.to(self._source.device)
        tokens = self._model(input_ids=ids, attention_mask=mask).last_hidden_state
        vectors = self._pool(tokens.float(), mask)
        if self._normalizes:
            vectors = torch.nn.functional.normalize(vectors, dim=-1)
        return vectors.cpu()


def is_encoder(folder: str) -> bool:
    """Whether a folder holds an encoder; one without a configuration holds nothing."""
    file = Path(folder) / "config.json"
    names = _read(file).get("architectures") if file.exists() else None
    return isinstance(names, list) and bool(names) and names[0] in ENCODERS


def _mean(tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weights = mask.unsqueeze(-1).to(tokens.dtype)
    return (tokens * weights).sum(dim=1) / weights.sum(dim=1)


def _first(tokens: torch.Tensor, _mask: torch.Tensor) -> torch.Tensor:
    return tokens[:, 0]


def _largest(tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return tokens.masked_fill(mask.unsqueeze(-1) == 0, -torch.inf).amax(dim=1)


_POOLS: dict[str, Pool] = {
    "pooling_mode_mean_tokens": _mean,
    "pooling_mode_cls_token": _first,
    "pooling_mode_max_tokens": _largest,
}


def _read_pooling(folder: Path) -> tuple[Pool, bool]:
    """Read how vectors are pooled, and whether they are normalized; raises CheckpointError."""
    modules_file = folder / "modules.json"
    if not modules_file.exists():
        return _mean, False
    kinds = [str(module["type"]).rsplit(".", 1)[-1] for module in _read(modules_file)]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        raise CheckpointError(f"modules.json: {', '.join(kinds)} cannot be run one after the other")
    config = _read(folder / POOLING_FOLDER / "config.json")
    modes = [name for name in config if name.startswith("pooling_mode_") and config[name] is True]
    if len(modes) != 1 or modes[0] not in _POOLS:
        raise CheckpointError(f"{POOLING_FOLDER}: {', '.join(modes) or 'nothing'} is not supported")
    return _POOLS[modes[0]], kinds[2:] == ["Normalize"]


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file.name} cannot be read: {error}") from error
