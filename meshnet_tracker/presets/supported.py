"""Which architectures no Worker can run, by the list that `bench.architectures` writes.

A model type that the list does not name is accepted: it passed, or it is newer than the list, and
then the Worker's own look at the model decides when it is loaded. Of some model
types only those with a certain rope are on it.
"""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from meshnet_tracker.presets.errors import UnsupportedArchitectureError

LIST_NAME = "unsupported.json"


def check_supported(config: Mapping[str, Any]) -> None:
    """Raise UnsupportedArchitectureError with the reason for a model type on the list."""
    model_type = config.get("model_type")
    for name in (model_type, *(f"{model_type} ({rope_type})" for rope_type in _rope_types(config))):
        reason = unsupported().get(name) if isinstance(name, str) else None
        if reason is not None:
            raise UnsupportedArchitectureError(f"{name}: {reason}")


def _rope_types(config: Mapping[str, Any]) -> list[object]:
    own = [config.get(name) for name in ("rope_parameters", "rope_scaling")]
    return [rope.get("rope_type", rope.get("type")) for rope in own if isinstance(rope, Mapping)]


@cache
def unsupported() -> Mapping[str, str]:
    """The list: reasons by model type, or by model type and rope as "type (rope)"."""
    listed = files("meshnet_tracker.presets").joinpath(LIST_NAME).read_bytes()
    return msgspec.json.decode(listed, type=dict[str, str])
