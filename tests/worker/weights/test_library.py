from pathlib import Path

import msgspec
import pytest

from meshnet_common.edge.remote_files import SourceUnreachableError
from meshnet_common.shard_range import ShardRange
from meshnet_worker.weights.description import STATE_FILE, kept_description
from meshnet_worker.weights.errors import WeightsFolderError, WeightsNotFoundError
from tests.weights import checkpoint, manifest_of, mirror_of
from tests.worker.weights.opening import fetch, library_in, model_at

FILES = checkpoint()


async def test_a_folder_is_read_where_it_is(tmp_path: Path) -> None:
    async with library_in(tmp_path / "fetched") as library:
        weights = await library.open(model_at(str(tmp_path)))
        weights.keep(ShardRange(0, 1))
    assert weights.folder == tmp_path
    assert not (tmp_path / "fetched").exists()


@pytest.mark.parametrize("name", ["nowhere", "model.safetensors"])
async def test_what_is_no_folder_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    async with library_in(tmp_path) as library:
        with pytest.raises(WeightsNotFoundError, match=rf"no folder .*{name}; copy the model"):
            await library.open(model_at(str(tmp_path / name)))


# The tests run without a hub, as a machine without a network does.
@pytest.mark.parametrize("source", ["nobody/no-such-model", "no such name", "a/b/c/d"])
async def test_a_repository_that_cannot_be_fetched_is_named(source: str, tmp_path: Path) -> None:
    async with library_in(tmp_path) as library:
        with pytest.raises(WeightsNotFoundError, match=source):
            await library.open(model_at(source))


async def test_a_mirror_that_is_away_is_named(tmp_path: Path) -> None:
    async with library_in(tmp_path) as library:
        with pytest.raises(SourceUnreachableError, match=r"http://127\.0\.0\.1:9/model"):
            await library.open(model_at("http://127.0.0.1:9/model/"))


async def test_other_bytes_lie_in_another_folder(tmp_path: Path) -> None:
    async with mirror_of(FILES) as mirror, library_in(tmp_path) as library:
        folders = {
            (await library.open(model_at(mirror.url, manifest))).folder
            for manifest in (None, manifest_of(FILES), manifest_of(FILES, per_tensor=False))
        }
    assert len(folders) == 3


async def test_a_folder_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with mirror_of(FILES) as mirror, library_in(tmp_path / "file") as library:
        with pytest.raises(WeightsFolderError, match="--weights-dir"):
            await library.open(model_at(mirror.url))


async def test_a_damaged_description_is_fetched_again(tmp_path: Path) -> None:
    async with mirror_of(FILES) as mirror, library_in(tmp_path) as library:
        model = model_at(mirror.url, manifest_of(FILES))
        folder = (await library.open(model)).folder
        kept = kept_description(folder)
        assert kept is not None
        torn = msgspec.structs.replace(kept.files[0], start=b"torn")
        damaged = msgspec.structs.replace(kept, files=(torn,))
        (folder / STATE_FILE).write_bytes(msgspec.msgpack.encode(damaged))
        await fetch(await library.open(model), 2, 4)
        assert kept_description(folder) == kept


async def test_fetched_layers_are_there_without_their_source(tmp_path: Path) -> None:
    async with mirror_of(FILES) as mirror:
        model = model_at(mirror.url, manifest_of(FILES))
        async with library_in(tmp_path) as library:
            await fetch(await library.open(model), 2, 4)
    async with library_in(tmp_path) as library:
        assert await fetch(await library.open(model), 2, 4) == []
