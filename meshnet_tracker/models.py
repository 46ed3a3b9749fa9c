"""From the name that a client asks for to the Variant that it means; pure."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from meshnet_common.errors import MeshnetError
from meshnet_common.openai.errors import invalid_request
from meshnet_common.presets import ModelPreset, Variant
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.snapshot import VariantKey

RETRY_AFTER_SECONDS = 5


class UnknownModelError(MeshnetError):
    """No Model Preset of this Mesh has this name."""

    exit_status = 3


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


Find = Callable[[str], Awaitable[ServedModel]]
"""From a name that a client asks for to the model; raises UnknownModelError."""


@dataclass(frozen=True, slots=True)
class NameBook:
    """What Operators decide about public names: what an Alias stands for, and who is a Canary."""

    aliases: Mapping[str, str] = field(default_factory=dict)
    canaries: frozenset[str] = frozenset()
    """Names of Model Presets."""

    def stands_for(self, name: str) -> str:
        """The own name of what answers under this one; an Alias goes before a model's own name."""
        return self.aliases.get(name, name)

    def is_public(self, model: ServedModel, name: str) -> bool:
        """Whether clients may ask for this model so: for a Canary, only through an Alias."""
        return name in self.aliases or not self.is_canary(model)

    def is_canary(self, model: ServedModel) -> bool:
        return model.preset.name in self.canaries

    def listed_as(self, model: ServedModel) -> tuple[str, ...]:
        """The public names that mean this model."""
        own = () if model.name in self.aliases or self.is_canary(model) else (model.name,)
        return (*own, *sorted(name for name in self.aliases if self.aliases[name] == model.name))


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


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What may be asked for, and under which names."""

    presets: Sequence[ModelPreset]
    names: NameBook

    def find(self, name: str) -> ServedModel:
        """Find what answers under a name, a Canary included; raises UnknownModelError."""
        return find_model(self.presets, self.names.stands_for(name))

    def find_public(self, name: str) -> ServedModel:
        """Find what answers a client under a public name; raises UnknownModelError."""
        model = self.find(name)
        if not self.names.is_public(model, name):
            raise UnknownModelError(name)
        return model

    def find_canary(self, name: str) -> ServedModel:
        """Find a Canary by its own name; raises UnknownModelError."""
        model = find_model(self.presets, name)
        if not self.names.is_canary(model):
            raise UnknownModelError(name)
        return model

    def find_variant(self, key: VariantKey, digest: str) -> ServedModel:
        """Find a Variant that still has these weights; raises UnknownModelError."""
        for model in served_models(self.presets):
            if model.key == key and model.variant.digest == digest:
                return model
        raise UnknownModelError(key.model)


def answering(find: Find) -> Find:
    """Find models that answer with text only; raises ApiError 400 for others."""

    async def found(name: str) -> ServedModel:
        model = await find(name)
        if model.preset.is_encoder:
            raise invalid_request(f"`{name}` makes embeddings, and no answers.", "model")
        return model

    return found


def encoding(find: Find) -> Find:
    """Find models that make embeddings only; raises ApiError 400 for others."""

    async def found(name: str) -> ServedModel:
        model = await find(name)
        if not model.preset.is_encoder:
            raise invalid_request(f"`{name}` makes no embeddings.", "model")
        return model

    return found


def unavailable(model: ServedModel, missing: Sequence[ShardRange]) -> ModelUnavailableError:
    """Say which Layers of a model nobody serves; none: the Workers that were asked for do not."""
    whole = ShardRange(0, model.layer_count)
    if not missing:
        lack = "no ready workers are left but those that the request does not want"
    elif whole in missing:
        lack = f"none of its layers {_layers(whole)} has a ready worker"
    else:
        runs = ", ".join(map(_layers, missing))
        lack = f"of its layers {_layers(whole)}, {runs} have no ready worker"
    return ModelUnavailableError(f"The model `{model.name}` cannot be served now: {lack}.")


def _layers(gap: ShardRange) -> str:
    return str(gap.start) if len(gap) == 1 else f"{gap.start}-{gap.end - 1}"
