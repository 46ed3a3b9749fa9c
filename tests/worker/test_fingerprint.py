from msgspec.structs import replace

from meshnet_common.weights.manifest import FileRecord, Manifest
from meshnet_worker.fingerprint import fingerprint
from tests.common.builders import preset, variant

FILES = (FileRecord(name="model.safetensors", size_bytes=10, tensors={"a": "1"}),)
PRESET = replace(preset(), manifest=Manifest(files=FILES, revision="r1"))


def test_it_is_the_same_wherever_the_same_is_served() -> None:
    assert fingerprint(PRESET, variant()) == fingerprint(replace(PRESET), variant())


def test_it_changes_with_weights_quantization_and_numeric_format() -> None:
    other_bytes = (replace(FILES[0], tensors={"a": "2"}),)
    presets = [
        PRESET,
        preset(),
        replace(PRESET, source="elsewhere"),
        replace(PRESET, manifest=Manifest(files=FILES, revision="r2")),
        replace(PRESET, manifest=Manifest(files=other_bytes, revision="r1")),
    ]
    variants = [
        replace(variant(), digest="other"),
        replace(variant(), quantization="int8"),
        replace(variant(), wire_dtype="bfloat16"),
        replace(variant(), gguf_sha256="0" * 64),
    ]
    names = [fingerprint(one, variant()) for one in presets]
    names += [fingerprint(PRESET, one) for one in variants]
    assert len(set(names)) == len(names)
    assert all(name.startswith("fp_") and len(name) == 19 for name in names)


def test_it_does_not_change_with_what_this_mesh_calls_the_model() -> None:
    assert fingerprint(replace(PRESET, name="other"), variant()) == fingerprint(PRESET, variant())
