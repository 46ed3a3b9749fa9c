"""What is wrong with settings: every fault with its place, all of them at once."""

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from meshnet_common.errors import MeshnetError


class SettingsError(MeshnetError):
    """The settings cannot be used."""

    exit_status: ClassVar[int] = 3

    def __init__(self, faults: tuple[str, ...]) -> None:
        self.faults = faults
        super().__init__("".join(f"\n  {fault}" for fault in faults))

    def __str__(self) -> str:
        return super().__str__().replace(" \n", "\n", 1)


class Place(msgspec.Struct, frozen=True):
    """Where a table of fields stands; `renamed` has other names of its fields, if any."""

    prefix: str = ""
    renamed: Mapping[str, str] = {}

    def of(self, field: str) -> str:
        return self.prefix + self.renamed.get(field, field)

    def __str__(self) -> str:
        return self.prefix.rstrip(".: ")


class Faults:
    """Gathers faults while settings are read, so that one run tells them all.

    A place is the way to a field as it would be written: `chat_models[2].endpoints[0].base_url`, or
    `MESH_FEDERATION_PEERS record 3: base_url`.
    """

    def __init__(self) -> None:
        self._found: dict[str, None] = {}

    def add(self, place: str, message: str) -> None:
        self._found[f"{place}: {message}"] = None

    @property
    def found(self) -> tuple[str, ...]:
        return tuple(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def raise_if_any(self) -> None:
        """Raise SettingsError if there is a fault."""
        if self._found:
            raise SettingsError(self.found)


def item_of(place: str, index: int) -> Place:
    """Name an item of a list.

    In an environment variable one counts records, from 1, since it may be CSV.
    """
    return Place(f"{place} record {index + 1}: " if place.isupper() else f"{place}[{index}].")
