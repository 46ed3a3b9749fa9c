"""Which architectures no Worker can run, by the list that `bench.architectures` writes.

A model type that the list does not name is accepted: it passed, or it is newer than the list, and
then the Worker's own look at the model decides when it is loaded.
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
    reason = unsupported_model_types().get(model_type) if isinstance(model_type, str) else None
    if reason is not None:
        raise UnsupportedArchitectureError(f"{model_type}: {reason}")


@cache
def unsupported_model_types() -> Mapping[str, str]:
    """The list: reasons by model type."""
    listed = files("meshnet_tracker.presets").joinpath(LIST_NAME).read_bytes()
    return msgspec.json.decode(listed, type=dict[str, str])
