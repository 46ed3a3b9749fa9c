"""From the name that a client asks for to the Variant that it means; pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from meshnet_common.errors import MeshnetError
from meshnet_common.presets import ModelPreset, Variant
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.snapshot import VariantKey

RETRY_AFTER_SECONDS = 5


class UnknownModelError(MeshnetError):
    """No Model Preset of this Mesh has this name."""


class ModelUnavailableError(MeshnetError):
    """The model is known, but not all of its layers have a ready Worker."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One Variant under its public name."""

    name: str
    preset: ModelPreset
    variant: Variant

    @property
    def key(self) -> VariantKey:
        return VariantKey(self.preset.name, self.variant.quantization)

    @property
    def layer_count(self) -> int:
        return self.variant.layer_count


def served_models(presets: Iterable[ModelPreset]) -> Iterator[ServedModel]:
    """Yield every Variant that may be asked for, each preset's default first."""
    for preset in presets:
        for variant in preset.variants:
            yield ServedModel(preset.public_name(variant.quantization), preset, variant)


def find_model(presets: Iterable[ModelPreset], name: str) -> ServedModel:
    """Find a Variant by its public name; raises UnknownModelError with the name as detail."""
    for model in served_models(presets):
        if model.name == name:
            return model
    raise UnknownModelError(name)


def unavailable(model: ServedModel, missing: Sequence[ShardRange]) -> ModelUnavailableError:
    """Say which Layers of a model nobody serves."""
    runs = ", ".join(_layers(gap) for gap in missing)
    last = model.layer_count - 1
    return ModelUnavailableError(
        f"The model `{model.name}` cannot be served now: of its layers 0-{last}, {runs} have no "
        "ready worker."
    )


def _layers(gap: ShardRange) -> str:
    return str(gap.start) if len(gap) == 1 else f"{gap.start}-{gap.end - 1}"
