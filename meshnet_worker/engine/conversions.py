"""A checkpoint under the names and shapes that the model's own code has today.

Publishers store some weights otherwise than transformers' classes hold them: every expert apart
instead of one stacked tensor, or under older names. transformers knows the rules; here they are
applied tensor by tensor, so that still only what is asked for is read.
"""

from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import torch
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

from meshnet_worker.engine.checkpoint import Checkpoint, CheckpointError


@dataclass(slots=True)
class _Origin:
    """The stored tensors, with the pattern that each one matched, and what makes ours of them."""

    first: str
    converter: WeightConverter | None
    stored: list[tuple[str, str]] = field(default_factory=list)


class ConvertedCheckpoint:
    """The tensors of a checkpoint by the model's names; reading raises CheckpointError."""

    def __init__(self, checkpoint: Checkpoint, model: PreTrainedModel) -> None:
        self._checkpoint = checkpoint
        self._model = model
        self._origins: dict[str, _Origin] = {}
        rules = get_model_conversion_mapping(model)
        self._renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
        self._converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
        self._own = model.state_dict()
        for stored in sorted(checkpoint.names, key=dot_natural_key):
            self._trace(stored)

    def holds(self, name: str) -> bool:
        return name in self._origins

    def packed_bytes(self, _name: str) -> int | None:
        """Nothing is kept packed."""
        return None

    def packed(self, name: str) -> NoReturn:
        """Never asked for, since nothing is kept packed."""
        raise AssertionError(name)

    def read(self, name: str) -> torch.Tensor:
        """Read one tensor on the CPU in the checkpoint's own dtype; raises CheckpointError."""
        origin = self._origins.get(name)
        if origin is None:
            return self._checkpoint.read(name)
        if origin.converter is None:
            return self._checkpoint.read(origin.stored[0][1])
        converter = deepcopy(origin.converter)
        for pattern, stored in origin.stored:
            # A function is as welcome here as a future.
            read: Any = partial(self._checkpoint.read, stored)
            converter.add_tensor(origin.first, stored, pattern, read)
        try:
            made = converter.convert(origin.first, model=self._model, config=self._model.config)
            tensor: torch.Tensor | list[torch.Tensor] = made[name]
        except (RuntimeError, ValueError, TypeError, KeyError, IndexError) as error:
            raise CheckpointError(f"{name} cannot be made of what is stored: {error!r}.") from error
        return tensor[0] if isinstance(tensor, list) else tensor

    def _trace(self, stored: str) -> None:
        prefix = self._model.base_model_prefix
        name, pattern = rename_source_key(
            stored, self._renamings, self._converters, prefix, self._own
        )
        if name not in self._own and stored in self._own:
            name, pattern = rename_source_key(stored, [], [], prefix, self._own)
        if name not in self._own:
            return
        if pattern is None:
            self._origins.setdefault(name, _Origin(name, None, [("", stored)]))
            return
        converter = next(rule for rule in self._converters if pattern in rule.source_patterns)
        origin = self._origins.setdefault(name, _Origin(name, converter))
        origin.stored.append((pattern, stored))
        for target in converter.target_patterns[1:]:
            self._origins[name.replace(converter.target_patterns[0], target)] = origin
