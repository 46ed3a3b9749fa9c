"""Why a checkpoint cannot become a Model Preset."""

from meshnet_common.errors import MeshnetError


class CheckpointError(MeshnetError):
    """The checkpoint cannot become a Model Preset."""

    exit_status = 3


class NoCheckpointError(CheckpointError):
    """There is no usable checkpoint at this place."""


class HeaderError(CheckpointError):
    """A safetensors file does not begin with a valid header."""


class ConfigError(CheckpointError):
    """The checkpoint's config.json does not describe a model that can be split into Layers."""


class QuantizationError(CheckpointError):
    """The Model Preset cannot be registered with this quantization."""


class PresetNameError(CheckpointError):
    """The name cannot be used for a Model Preset."""
