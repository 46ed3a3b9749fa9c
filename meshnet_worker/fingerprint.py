"""Names what an answer follows from besides its request: weights, quantization, numeric format.

Clients see it as `system_fingerprint`; with another one the same seed may give other answers.
"""

import hashlib

import msgspec

from meshnet_common.presets import ModelPreset, Variant

_CHARACTERS = 16


def fingerprint(preset: ModelPreset, variant: Variant) -> str:
    """Name a Variant of a preset; it is the same on every Worker that serves it."""
    manifest = "" if preset.manifest is None else preset.manifest.digest
    facts = [
        preset.source,
        manifest,
        variant.digest,
        variant.gguf_sha256,
        variant.quantization,
        variant.wire_dtype,
    ]
    return f"fp_{hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:_CHARACTERS]}"
