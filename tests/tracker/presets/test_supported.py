import pytest

from meshnet_tracker.presets.checkpoint import Checkpoint, make_preset
from meshnet_tracker.presets.errors import UnsupportedArchitectureError
from meshnet_tracker.presets.supported import check_supported, unsupported
from tests.tracker.presets.checkpoints import LLAMA_CONFIG


def test_a_model_that_cannot_be_split_is_refused_with_the_reason() -> None:
    checkpoint = Checkpoint("/models/tiny", {**LLAMA_CONFIG, "model_type": "rwkv"}, ())
    with pytest.raises(UnsupportedArchitectureError, match=r"rwkv: .*state"):
        make_preset(checkpoint, "tiny")


@pytest.mark.parametrize("model_type", ["llama", "bloom", "a-model-of-tomorrow", None, 3])
def test_what_the_list_does_not_name_is_accepted(model_type: object) -> None:
    check_supported({"model_type": model_type})


@pytest.mark.parametrize("field", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("kind", ["rope_type", "type"])
def test_a_rope_that_no_session_can_share_is_refused(field: str, kind: str) -> None:
    config = {"model_type": "llama", field: {kind: "dynamic", "factor": 2.0}}
    with pytest.raises(UnsupportedArchitectureError, match=r"llama \(dynamic\): .*Sessions"):
        check_supported(config)
    check_supported({**config, field: {kind: "linear", "factor": 2.0}})


def test_every_reason_is_a_sentence() -> None:
    assert all(reason.endswith(".") for reason in unsupported().values())
