"""The demo's model is converted once, and only a whole folder counts as converted."""

import multiprocessing
from pathlib import Path

import pytest
from safetensors import safe_open

from demo import model


def _convert_into(folder: Path) -> None:
    model.ensure_model(folder)


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that two processes made when they both found none."""
    folder = tmp_path_factory.mktemp("models")
    context = multiprocessing.get_context("spawn")
    converters = [context.Process(target=_convert_into, args=(folder,)) for _ in range(2)]
    for converter in converters:
        converter.start()
    for converter in converters:
        converter.join(timeout=120)
    assert [converter.exitcode for converter in converters] == [0, 0]
    return folder


def test_two_processes_at_once_make_one_whole_folder(converted: Path) -> None:
    assert {path.name for path in converted.iterdir()} == {"smollm2-135m", "smollm2-135m.lock"}
    names = {path.name for path in (converted / "smollm2-135m").iterdir()}
    assert {"model.safetensors", "config.json", "generation_config.json"} <= names
    assert {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} <= names


def test_the_weights_are_kept_in_bfloat16(converted: Path) -> None:
    with safe_open(converted / "smollm2-135m" / "model.safetensors", "pt") as weights:
        assert weights.get_slice("model.embed_tokens.weight").get_dtype() == "BF16"


def test_a_converted_model_is_found_and_not_made_again(tmp_path: Path) -> None:
    (tmp_path / "smollm2-135m").mkdir()
    assert model.ensure_model(tmp_path) == tmp_path / "smollm2-135m"
    assert not (tmp_path / "smollm2-135m.lock").exists()


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "PACKAGE", "a_package_that_is_not_installed")
    with pytest.raises(model.ModelPackageMissingError):
        model.ensure_model(tmp_path)
    assert not (tmp_path / "smollm2-135m").exists()


def test_the_printed_path_is_the_only_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models" / "smollm2-135m").mkdir(parents=True)
    monkeypatch.setattr(model, "user_cache_path", lambda _: tmp_path)
    assert model.main() == 0
    assert capsys.readouterr().out == f"{tmp_path}/models/smollm2-135m\n"
