"""Reads environment variables as if they stood in the file; each stands for one field."""

from collections.abc import Callable, Mapping
from typing import Any

from meshnet_gateway.config.faults import Faults
from meshnet_gateway.config.texts import read_json, read_peers, read_scalar, read_words

PREFIX = "MESHNET_GATEWAY_"


Reader = Callable[[str], Any]

VARIABLES: Mapping[str, tuple[str, Reader]] = {
    "MESHNET_MESHES": ("meshes", read_words),
    "MESH_FEDERATION_PEERS": ("federation_peers", read_peers),
    "MESH_PROXY_CONNECT_RETRIES": ("connect_retries", read_scalar),
    "MESH_PROXY_CONNECT_BACKOFF_MS": ("connect_backoff_ms", read_scalar),
    "GPU_CONCURRENCY_BUDGETS": ("gpu_concurrency_budgets", read_json),
    "GPU_RESERVED_ROLES": ("gpu_reserved_roles", read_words),
    "MODEL_MAX_CONCURRENCY": ("model_max_concurrency", read_scalar),
    f"{PREFIX}MESH_ID": ("mesh_id", str),
    f"{PREFIX}HOLD_SECONDS": ("hold_seconds", read_scalar),
    f"{PREFIX}ACK_AFTER_MS": ("ack_after_ms", read_scalar),
    f"{PREFIX}KEEP_ALIVE_SECONDS": ("keep_alive_seconds", read_scalar),
    f"{PREFIX}MAX_WAITING": ("max_waiting", read_scalar),
    f"{PREFIX}MAX_TOTAL_BODY_BYTES": ("max_total_body_bytes", read_scalar),
}
"""The field that a variable stands for, and how its text is read."""


def read_environment(environment: Mapping[str, str], faults: Faults) -> dict[str, tuple[str, Any]]:
    """Return the fields that variables stand for, each with its variable's name.

    An empty variable counts as one that is not there, save that no peers means none.
    """
    found: dict[str, tuple[str, Any]] = {}
    for variable, (field, read) in VARIABLES.items():
        text = environment.get(variable)
        if text is None or (not text.strip() and read is not read_peers):
            continue
        try:
            found[field] = (variable, read(text))
        except ValueError as error:
            faults.add(variable, str(error))
    return found
