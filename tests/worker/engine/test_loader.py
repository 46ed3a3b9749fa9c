import json
from pathlib import Path

import pytest
from transformers import MptConfig, PretrainedConfig

from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine.loader import Loader
from meshnet_worker.engine_port import (
    DropLayers,
    Event,
    LayersDropped,
    LayersLoaded,
    LoadFailed,
    LoadLayers,
    LoadProgressed,
)
from tests.worker.conftest import ModelFolders
from tests.worker.engine.splitting import CPU, SplitModel
from tests.worker.engine.test_encoder import CONFIGS, save
from tests.worker.models import HIDDEN_SIZE, LAYERS, logits_of, prompt_of, save_model


class Loading:
    """A loader with everything that it said."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.loader = Loader(CPU, lambda event, _payload: self.events.append(event))

    def load(self, folder: Path, start: int = 0, end: int = LAYERS, shard: int = 0) -> list[Event]:
        self.events.clear()
        self.loader.add(LoadLayers(shard, str(folder), "float32", start, end))
        while self.loader.has_work:
            self.loader.step()
        return self.events

    def ranges(self) -> dict[int, ShardRange | None]:
        return {number: shard.loaded for number, shard in self.loader.shards.items()}


@pytest.fixture
def loading() -> Loading:
    return Loading()


def failure(events: list[Event]) -> str:
    *_, last = events
    assert isinstance(last, LoadFailed)
    return last.reason


def test_a_load_reports_each_layer_and_then_that_it_is_done(
    loading: Loading, model_folders: ModelFolders
) -> None:
    *progress, last = loading.load(model_folders("llama"), 1, 4)
    assert isinstance(last, LayersLoaded)
    assert last == LayersLoaded(0, 1, 4, HIDDEN_SIZE, last.layer_bytes)
    done = [event.bytes_done for event in progress if isinstance(event, LoadProgressed)]
    totals = {event.bytes_total for event in progress if isinstance(event, LoadProgressed)}
    # Three Layers and the exit.
    assert len(done) == len(progress) == 4
    assert done == sorted(done)
    assert totals == {done[-1]}
    assert loading.ranges() == {0: ShardRange(1, 4)}


def test_one_step_loads_one_layer(loading: Loading, model_folders: ModelFolders) -> None:
    loading.loader.add(LoadLayers(0, str(model_folders("llama")), "float32", 1, 3))
    loading.loader.step()
    assert len(loading.events) == 1
    assert loading.loader.has_work


def test_loads_run_one_after_the_other(loading: Loading, model_folders: ModelFolders) -> None:
    loading.loader.add(LoadLayers(0, str(model_folders("llama")), "float32", 0, 2))
    loading.loader.add(LoadLayers(1, str(model_folders("gpt2")), "float32", 2, 4))
    while loading.loader.has_work:
        loading.loader.step()
    finished = [event.shard for event in loading.events if isinstance(event, LayersLoaded)]
    assert finished == [0, 1]
    assert loading.ranges() == {0: ShardRange(0, 2), 1: ShardRange(2, 4)}


def test_a_loaded_shard_is_exact(loading: Loading, model_folders: ModelFolders) -> None:
    loading.load(model_folders("llama"), 0, 2)
    loading.load(model_folders("llama"), 2, 4)
    shard = loading.loader.shards[0]
    logits = SplitModel([(shard, ShardRange(0, LAYERS))]).session().prefill(prompt_of(9))
    assert logits.argmax(dim=1).tolist() == logits_of("llama", prompt_of(9)).argmax(dim=1).tolist()


def test_a_drop_trims_a_shard_and_the_last_one_removes_it(
    loading: Loading, model_folders: ModelFolders
) -> None:
    loading.load(model_folders("llama"), 0, 3)
    loading.loader.drop(DropLayers(0, 2, 3))
    assert loading.ranges() == {0: ShardRange(0, 2)}
    loading.loader.drop(DropLayers(0, 0, 2))
    assert loading.ranges() == {}
    assert loading.events[-2:] == [LayersDropped(0, 2, 3), LayersDropped(0, 0, 2)]


def without_weights(folder: Path) -> None:
    for file in folder.glob("*.safetensors"):
        file.unlink()


def with_a_truncated_file(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def without_configuration(folder: Path) -> None:
    (folder / "config.json").unlink()


def with_junk_for_configuration(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def with_a_configuration_of_wrong_types(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": "many"}))


def with_an_unknown_architecture(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "abacus"}')


def with_weights_of_another_model(folder: Path) -> None:
    without_weights(folder)
    save_model("gpt2", folder / "other")
    (folder / "other" / "model.safetensors").rename(folder / "model.safetensors")


def with_larger_layers_than_the_weights(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 80}))


@pytest.mark.parametrize(
    "damage",
    [
        without_weights,
        with_a_truncated_file,
        without_configuration,
        with_junk_for_configuration,
        with_a_configuration_of_wrong_types,
        with_an_unknown_architecture,
        with_weights_of_another_model,
        with_larger_layers_than_the_weights,
    ],
)
def test_a_load_that_fails_says_why_and_leaves_nothing(
    damage: object, loading: Loading, tmp_path: Path
) -> None:
    save_model("llama", tmp_path)
    assert callable(damage)
    damage(tmp_path)
    assert failure(loading.load(tmp_path))
    assert loading.ranges() == {}
    assert not loading.loader.has_work


def test_a_model_that_transformers_cannot_run_in_layers_says_why(
    loading: Loading, tmp_path: Path
) -> None:
    config: PretrainedConfig = MptConfig(vocab_size=64, d_model=32, n_layers=2, n_heads=4)
    config.save_pretrained(tmp_path)
    assert failure(loading.load(tmp_path, 0, 2))
    assert loading.ranges() == {}


@pytest.mark.parametrize(
    ("start", "end", "reason"), [(0, 9, "beyond the model"), (3, 4, "a gap lies between")]
)
def test_a_range_that_cannot_be_loaded_leaves_what_was_there(
    start: int, end: int, reason: str, loading: Loading, model_folders: ModelFolders
) -> None:
    loading.load(model_folders("llama"), 0, 2)
    assert reason in failure(loading.load(model_folders("llama"), start, end))
    assert loading.ranges() == {0: ShardRange(0, 2)}


def test_an_extension_that_fails_leaves_what_was_there(loading: Loading, tmp_path: Path) -> None:
    folder = save_model("llama", tmp_path)
    loading.load(folder, 0, 2)
    without_weights(folder)
    failure(loading.load(folder, 2, 4))
    assert loading.ranges() == {0: ShardRange(0, 2)}


def test_a_load_after_a_failed_one_is_carried_out(
    loading: Loading, tmp_path: Path, model_folders: ModelFolders
) -> None:
    loading.load(tmp_path)
    assert isinstance(loading.load(model_folders("llama"))[-1], LayersLoaded)


def test_an_encoder_is_loaded_whole_and_dropped_beside_other_shards(
    loading: Loading, model_folders: ModelFolders, tmp_path: Path
) -> None:
    folder = save(tmp_path, CONFIGS["BertModel"])
    loading.load(model_folders("llama"), shard=0)
    *_, last = loading.load(folder, 0, 1, shard=1)
    assert isinstance(last, LayersLoaded)
    assert (last.hidden_size, last.layer_bytes > 0) == (32, True)
    assert list(loading.loader.encoders) == [1]
    assert "whole" in failure(loading.load(folder, 0, 2, shard=2))
    loading.loader.drop(DropLayers(1, 0, 1))
    assert loading.loader.encoders == {}
    assert loading.ranges() == {0: ShardRange(0, LAYERS)}


def test_an_encoder_that_cannot_be_loaded_says_why_and_leaves_nothing(
    loading: Loading, tmp_path: Path
) -> None:
    folder = save(tmp_path, CONFIGS["BertModel"])
    (folder / "model.safetensors").write_bytes(b"junk")
    assert failure(loading.load(folder, 0, 1))
    assert loading.loader.encoders == {}
