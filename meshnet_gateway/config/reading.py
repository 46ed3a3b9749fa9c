"""Reads settings from everywhere they may stand: flags over environment over file over defaults.

Nothing wins silently: where each field came from is kept, and `meshnet-gateway check-config` shows
it.
"""

import secrets
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshnet_gateway.config.checking import check_settings
from meshnet_gateway.config.entries import SettingsEntry
from meshnet_gateway.config.environment import read_environment
from meshnet_gateway.config.faults import Faults, Place
from meshnet_gateway.config.records import read_fields
from meshnet_gateway.config.resolving import Resolver
from meshnet_gateway.config.settings import Settings
from meshnet_gateway.config.texts import NESTED_TOO_DEEP, read_json


@dataclass(frozen=True, slots=True)
class Sources:
    """Where to read; reading again shows what has changed in the file."""

    path: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    """By field: the flag's name and its value."""
    fresh_mesh_id: str = field(default_factory=lambda: f"mesh-{secrets.token_hex(4)}")
    """It must differ from that of every other Gateway, so that requests do not run in circles."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Settings, and what was written: its fields' places tell where, unless in the file."""

    settings: Settings
    entry: SettingsEntry
    file: str


def read_settings(sources: Sources) -> Settings:
    """Read settings; raises SettingsError with all faults."""
    return read_all(sources).settings


def read_all(sources: Sources) -> Reading:
    """Read settings with their origins; raises SettingsError with all faults."""
    faults = Faults()
    raw = _read_file(sources.path, faults) if sources.path is not None else {}
    outside = {**read_environment(sources.environment, faults), **sources.flags}
    table = {**raw, **{name: value for name, (_, value) in outside.items()}}
    place = Place(renamed={name: origin for name, (origin, _) in outside.items()})
    entry = SettingsEntry(place=place, **read_fields(SettingsEntry, table, place, faults))
    settings = Resolver(sources.environment, faults).settings(entry, sources.fresh_mesh_id)
    check_settings(entry, settings, faults)
    faults.raise_if_any()
    return Reading(settings, entry, str(sources.path or ""))


def _read_file(path: Path, faults: Faults) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        table = read_json(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        faults.add(str(path), error.strerror or "it cannot be read")
    except UnicodeDecodeError:
        faults.add(str(path), "this is no UTF-8 text")
    except tomllib.TOMLDecodeError as error:
        faults.add(str(path), f"this is no TOML: {error}")
    except RecursionError:
        faults.add(str(path), NESTED_TOO_DEEP)
    except ValueError as error:
        faults.add(str(path), str(error))
    else:
        if isinstance(table, dict):
            return table
        faults.add(str(path), "expected a table of fields")
    return {}
