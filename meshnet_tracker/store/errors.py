"""What can go wrong with the database; nobody outside this room sees SQLAlchemy's own errors.

StoreError
├── SchemaError               the Tracker must not work on this database as it is
│   ├── NewerSchemaError      a later release made it
│   ├── OlderSchemaError      an earlier release made it
│   └── ForeignDatabaseError  it is not ours at all
├── DatabaseUnavailableError  it cannot be opened, or does not answer
├── BadTokenError             no registered Worker has this id and token
├── UnknownDirectiveError
├── UnknownPresetError
├── PresetExistsError
├── PresetInUseError          an Alias stands for it
├── AliasError                an Alias cannot be set, changed or found
├── ApiKeyError               an API key cannot be made or found
├── PinError                  a pin or a drain cannot be set or found
├── BackupError               a copy, of the database or a snapshot, was not written
├── StaleSnapshotError        another pass issued Rebalance Directives meanwhile
└── StaleTermError            another Tracker plans now
"""

from meshnet_common.errors import MeshnetError


class StoreError(MeshnetError):
    """The Tracker's database refused."""


class SchemaError(StoreError):
    """The database's schema is not the one that this release works on."""

    exit_status = 3


class NewerSchemaError(SchemaError):
    """The database was made by a newer release of meshnet."""


class OlderSchemaError(SchemaError):
    """The database was made by an older release of meshnet."""


class ForeignDatabaseError(SchemaError):
    """The database is not one of meshnet's."""


class DatabaseUnavailableError(StoreError):
    """The database cannot be opened or does not answer."""

    exit_status = 3


class BadTokenError(StoreError):
    """No registered Worker has this id and token."""


class UnknownDirectiveError(StoreError):
    """The Worker was given no such Rebalance Directive."""


class UnknownPresetError(StoreError):
    """There is no such Model Preset."""

    exit_status = 3


class PresetExistsError(StoreError):
    """The name is already taken by another Model Preset or Variant."""

    exit_status = 3


class PresetInUseError(StoreError):
    """An Alias stands for this Model Preset."""

    exit_status = 3


class AliasError(StoreError):
    """The Alias cannot be changed so."""

    exit_status = 3


class ApiKeyError(StoreError):
    """The API key cannot be made or found."""

    exit_status = 3


class PinError(StoreError):
    """A Worker cannot be pinned or drained so."""

    exit_status = 3


class BackupError(StoreError):
    """The file could not be written; nothing that was there has changed."""

    exit_status = 3


class StaleSnapshotError(StoreError):
    """Rebalance Directives were issued since this Mesh Snapshot was taken."""


class StaleTermError(StoreError):
    """Another Tracker has taken over planning."""
