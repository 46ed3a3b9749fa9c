"""Writes settings files and reads them, or the faults in them."""

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from meshnet_gateway.config.faults import SettingsError
from meshnet_gateway.config.reading import Sources, read_settings
from meshnet_gateway.config.settings import Settings


def settings_of(
    table: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None
) -> Settings:
    """Read a table as if it stood in a JSON file."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "gateway.json")
        file.write_text(json.dumps(table or {}))
        return read_settings(Sources(file, environment or {}))


def faults_of(
    table: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None
) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        settings_of(table, environment)
    return list(caught.value.faults)


def chat_model(**fields: Any) -> dict[str, Any]:
    return {"id": "chat", **fields}


def embedding_model(**fields: Any) -> dict[str, Any]:
    return {"id": "embed", "base_url": "http://e1:7997", **fields}
