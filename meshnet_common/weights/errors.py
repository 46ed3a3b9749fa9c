"""Why a checkpoint's description cannot be used."""

from meshnet_common.errors import MeshnetError


class CheckpointError(MeshnetError):
    """The checkpoint cannot become a Model Preset."""

    exit_status = 3


class HeaderError(CheckpointError):
    """A safetensors file does not begin with a valid header."""


class ConfigError(CheckpointError):
    """The checkpoint's config.json does not describe a model that can be split into Layers."""
