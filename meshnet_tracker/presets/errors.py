"""Why a checkpoint cannot become a Model Preset."""

from meshnet_common.weights.errors import CheckpointError


class NoCheckpointError(CheckpointError):
    """There is no usable checkpoint at this place."""


class GgufVariantError(CheckpointError):
    """The GGUF file cannot be served as a Variant of this Model Preset."""


class QuantizationError(CheckpointError):
    """The Model Preset cannot be registered with this quantization."""


class UnsupportedArchitectureError(CheckpointError):
    """No Worker could run this model: its Layers cannot be split over Workers."""


class PresetNameError(CheckpointError):
    """The name cannot be used for a Model Preset."""
