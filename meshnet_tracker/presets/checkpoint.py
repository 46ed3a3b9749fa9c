"""A checkpoint as far as the Tracker reads it, and the Model Preset made of it; pure."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshnet_common.presets import DTYPE_BYTES, ENCODERS, ModelPreset
from meshnet_common.weights.errors import ConfigError
from meshnet_common.weights.headers import TensorEntry
from meshnet_common.weights.manifest import Manifest
from meshnet_common.weights.outline import outline_checkpoint
from meshnet_tracker.presets.errors import PresetNameError, QuantizationError
from meshnet_tracker.presets.facts import model_facts
from meshnet_tracker.presets.figures import (
    checkpoint_dtype,
    digest_input,
    known_quantizations,
    variant_figures,
)
from meshnet_tracker.presets.supported import check_supported
from meshnet_tracker.records import PresetRecord

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")
MAX_NAME_CHARACTERS = 120
MAX_LAYERS = 10_000
_NO_EXPERTS = "its experts are one fused parameter, which bitsandbytes does not quantize"
_NO_ENCODERS = "encoders are small, and not quantized here"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Config and headers of a checkpoint; `source` is where Workers find its weights."""

    source: str
    config: Mapping[str, Any]
    tensors: tuple[TensorEntry, ...]
    manifest: Manifest | None = None


def make_preset(
    checkpoint: Checkpoint, name: str, quantizations: tuple[str, ...] = ()
) -> PresetRecord:
    """Work out a Model Preset; the first quantization is the default Variant.

    Without any it is the checkpoint's own dtype. Raises a CheckpointError that says what is wrong.
    """
    _check_name(name)
    check_supported(checkpoint.config)
    facts = model_facts(checkpoint.config)
    is_encoder = facts.architecture in ENCODERS
    if facts.layer_count > MAX_LAYERS:
        raise ConfigError(f"It says {facts.layer_count} layers; at most {MAX_LAYERS} are allowed.")
    layer_count = None if is_encoder else facts.layer_count
    outline = outline_checkpoint(checkpoint.tensors, layer_count)
    own = checkpoint_dtype(outline.tensors)
    served = tuple(dict.fromkeys(quantizations)) or (own,)
    known = tuple(DTYPE_BYTES) if is_encoder else known_quantizations(outline)
    why = _NO_ENCODERS if is_encoder else _NO_EXPERTS
    _check_servable(served, known, why)
    figures = {
        quantization: variant_figures(
            facts, outline, quantization, _digest(checkpoint, quantization)
        )
        for quantization in known
    }
    preset = ModelPreset(
        name=name,
        source=checkpoint.source,
        architecture=facts.architecture,
        hidden_size=facts.hidden_size,
        vocabulary_size=facts.vocabulary_size,
        context_tokens=facts.context_tokens,
        default_quantization=served[0],
        variants=tuple(figures[quantization] for quantization in served),
        manifest=checkpoint.manifest,
    )
    unserved = tuple(figures[q] for q in known if q not in served)
    return PresetRecord(preset, unserved)


def _check_name(name: str) -> None:
    if len(name) > MAX_NAME_CHARACTERS or not _NAME.fullmatch(name):
        raise PresetNameError(
            f"{name!r:.140}: use letters, digits, dots, dashes, underscores and inner slashes, "
            f"at most {MAX_NAME_CHARACTERS} characters. Give another --name."
        )


def _check_servable(quantizations: tuple[str, ...], known: tuple[str, ...], why: str) -> None:
    for quantization in quantizations:
        if quantization not in known:
            raise QuantizationError(
                f"{quantization} is not possible for this model: {why}. "
                f"Choose among {', '.join(known)}."
            )


def _digest(checkpoint: Checkpoint, quantization: str) -> str:
    text = digest_input(checkpoint.config, checkpoint.tensors, quantization)
    if checkpoint.manifest is not None:
        text += checkpoint.manifest.digest.encode()
    return hashlib.sha256(text).hexdigest()
