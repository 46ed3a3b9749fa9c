import asyncio
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from meshnet_common.edge.remote_files import (
    FIRST_BYTES,
    SourceChangedError,
    SourceUnreachableError,
)
from meshnet_common.shard_range import ShardRange
from meshnet_worker.weights import part_files, remote_model
from meshnet_worker.weights.errors import DigestMismatchError
from meshnet_worker.weights.planning import GAP_BYTES
from tests.weights import (
    EMBEDDING_BYTES,
    LAYER_BYTES,
    LAYERS,
    NORM_BYTES,
    checkpoint,
    layer_names,
    manifest_of,
    mirror_of,
    tensors_of,
)
from tests.worker.waiting import Changes, ending_tasks
from tests.worker.weights.opening import (
    fetch,
    library_in,
    model_at,
    partials_in,
    parts_in,
    tensors_in,
)

FILES = checkpoint()


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_model, "BACKOFF_SECONDS", (0.0, 0.0, 0.0))
    monkeypatch.setattr(remote_model, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(part_files, "SYNC_BYTES", 8 << 10)


def expected(files: dict[str, bytes], start: int, end: int, ends: tuple[str, ...]) -> set[str]:
    names = {name for layer in range(start, end) for name in layer_names(layer)}
    return names | {name for name in tensors_of(files) if name.startswith(ends)}


@pytest.mark.parametrize("file_count", [1, 3])
@pytest.mark.parametrize(
    ("start", "end", "ends", "end_bytes"),
    [
        (0, 4, ("model.embed", "model.norm"), EMBEDDING_BYTES + NORM_BYTES),
        (4, 8, (), 0),
        (8, 12, ("model.embed", "model.norm"), EMBEDDING_BYTES + NORM_BYTES),
    ],
)
async def test_a_third_of_the_layers_costs_a_third_of_the_bytes(
    file_count: int, start: int, end: int, ends: tuple[str, ...], end_bytes: int, tmp_path: Path
) -> None:
    files = checkpoint(files=file_count)
    model = model_at("", manifest_of(files))
    async with mirror_of(files) as mirror, library_in(tmp_path) as library:
        weights = await library.open(model_at(mirror.url, model.manifest))
        headers = sum(min(FIRST_BYTES, len(c)) for n, c in files.items() if "model" in n)
        texts = len(files["config.json"])
        assert mirror.sent_bytes <= headers + texts
        before = mirror.sent_bytes
        heard = await fetch(weights, start, end)
        spent = mirror.sent_bytes - before
    wanted = 4 * LAYER_BYTES + end_bytes
    extents = len(mirror.weight_requests) - file_count
    assert wanted <= spent <= wanted + extents * GAP_BYTES
    assert extents <= 8
    found = tensors_in(weights.folder)
    assert found.keys() == expected(files, start, end, ends)
    assert found == {name: tensors_of(files)[name] for name in found}
    assert heard[-1][0] == heard[-1][1]
    assert [done for done, _ in heard] == sorted(done for done, _ in heard)


async def test_the_engines_reader_finds_the_tensors_and_misses_the_others(tmp_path: Path) -> None:
    async with mirror_of(FILES) as mirror, library_in(tmp_path) as library:
        weights = await library.open(model_at(mirror.url))
        await fetch(weights, 4, 8)
    matrix, _ = layer_names(5)
    with safe_open(weights.folder / "layer-00005.safetensors", framework="pt") as file:
        tensor = file.get_tensor(matrix)
    published = torch.frombuffer(bytearray(tensors_of(FILES)[matrix]), dtype=torch.bfloat16)
    assert torch.equal(tensor.flatten().view(torch.uint8), published.view(torch.uint8))
    assert not (weights.folder / "layer-00003.safetensors").exists()


async def test_a_head_of_its_own_spares_the_tail_the_embeddings(tmp_path: Path) -> None:
    files = checkpoint(is_tied=False)
    async with mirror_of(files) as mirror, library_in(tmp_path) as library:
        weights = await library.open(model_at(mirror.url))
        await fetch(weights, 11, 12)
    assert parts_in(tmp_path) == {"layer-00011", "norms", "output"}


async def test_what_is_here_is_not_fetched_again_and_the_source_is_not_even_asked(
    tmp_path: Path,
) -> None:
    async with mirror_of(FILES) as mirror:
        model = model_at(mirror.url, manifest_of(FILES))
        async with library_in(tmp_path) as library:
            await fetch(await library.open(model), 2, 4)
        asked = len(mirror.requests)
        async with library_in(tmp_path) as library:
            weights = await library.open(model)
            assert await fetch(weights, 2, 4) == []
            assert len(mirror.requests) == asked
            await fetch(weights, 2, 5)
    assert parts_in(tmp_path) == {"layer-00002", "layer-00003", "layer-00004"}


async def test_a_download_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    async with mirror_of(FILES) as mirror, library_in(tmp_path) as library:
        model = model_at(mirror.url, manifest_of(FILES))
        weights = await library.open(model)
        before = mirror.sent_bytes
        mirror.stall_after_bytes = before + 3 * LAYER_BYTES // 2
        changes, heard = Changes(), [0]

        def hear(bytes_done: int, _bytes_total: int) -> None:
            heard.append(bytes_done)
            changes.tell()

        async with ending_tasks() as tasks:
            tasks.create_task(weights.fetch(ShardRange(4, 8), hear))
            await changes.until(lambda: heard[-1] > 4 * LAYER_BYTES // 3)
        assert parts_in(tmp_path) == {"layer-00004"}
        mirror.stall_after_bytes = None
        mirror.resumed.set()
        async with library_in(tmp_path) as another:
            await fetch(await another.open(model), 4, 8)
        again = mirror.sent_bytes - before - 4 * LAYER_BYTES
    # What was on its way when it was stopped, and what was not yet durable.
    assert again <= 96 << 10
    assert tensors_in(weights.folder).keys() == expected(FILES, 4, 8, ())
    assert tensors_in(weights.folder).items() <= tensors_of(FILES).items()
    assert partials_in(tmp_path) == []


async def test_answers_that_are_cut_short_are_asked_for_again_from_there(tmp_path: Path) -> None:
    async with mirror_of(FILES) as mirror, library_in(tmp_path) as library:
        weights = await library.open(model_at(mirror.url, manifest_of(FILES)))
        before = mirror.sent_bytes
        mirror.cut_after_bytes = 30_000
        await fetch(weights, 4, 8)
        assert mirror.sent_bytes - before <= 4 * LAYER_BYTES + GAP_BYTES
    assert tensors_in(weights.folder).items() <= tensors_of(FILES).items()


async def test_a_server_that_ignores_ranges_is_read_through_once(tmp_path: Path) -> None:
    async with mirror_of(FILES) as mirror, library_in(tmp_path) as library:
        weights = await library.open(model_at(mirror.url, manifest_of(FILES)))
        mirror.ignores_ranges = True
        asked = len(mirror.requests)
        await fetch(weights, 0, LAYERS)
        assert len(mirror.requests) == asked + 1
    assert tensors_in(weights.folder) == tensors_of(FILES)


async def test_faults_that_pass_are_outlived(tmp_path: Path) -> None:
    async with mirror_of(FILES) as mirror, library_in(tmp_path) as library:
        weights = await library.open(model_at(mirror.url))
        mirror.statuses = [503, 429, 500]
        await fetch(weights, 4, 5)
    assert parts_in(tmp_path) == {"layer-00004"}


async def test_a_source_that_stays_away_is_given_up_and_what_came_is_kept(tmp_path: Path) -> None:
    async with mirror_of(FILES) as mirror, library_in(tmp_path) as library:
        weights = await library.open(model_at(mirror.url))
        await fetch(weights, 4, 5)
        mirror.statuses = [503] * 4
        with pytest.raises(SourceUnreachableError, match=r"status 503\. It was tried 4 times"):
            await fetch(weights, 4, 8)
        await fetch(weights, 4, 8)
    assert len(parts_in(tmp_path)) == 4


@pytest.mark.parametrize(
    ("manner", "reason"),
    [
        ({"files": {"config.json": b"", "model.safetensors": b"x"}}, "status 416"),
        (
            {
                "extra_headers": {
                    "Content-Range": f"bytes 0-9/{2 * len(FILES['model.safetensors'])}"
                }
            },
            "bytes, not",
        ),
        ({"extra_headers": {"Content-Range": "bytes 0-9/*"}}, "it answers bytes 0-9/"),
        ({"etag": '"2"'}, "its version is"),
    ],
    ids=["shorter", "another size", "another range", "another version"],
)
async def test_another_file_than_before_is_refused(
    manner: dict[str, object], reason: str, tmp_path: Path
) -> None:
    async with mirror_of(FILES) as mirror, library_in(tmp_path) as library:
        weights = await library.open(model_at(mirror.url))
        for name, value in manner.items():
            setattr(mirror, name, value)
        with pytest.raises(SourceChangedError, match=reason):
            await fetch(weights, 4, 8)
    assert (parts_in(tmp_path), partials_in(tmp_path)) == (set(), [])


def damaged(files: dict[str, bytes], tensor: str) -> dict[str, bytes]:
    """The same files with one bit of a tensor turned over."""
    content = bytearray(files["model.safetensors"])
    place = content.index(tensors_of(files)[tensor])
    content[place + 7] ^= 1
    return {**files, "model.safetensors": bytes(content)}


async def test_a_wrong_tensor_is_removed_and_the_right_ones_stay(tmp_path: Path) -> None:
    name = layer_names(5)[0]
    async with (
        mirror_of(damaged(FILES, name)) as mirror,
        library_in(tmp_path) as library,
    ):
        weights = await library.open(model_at(mirror.url, manifest_of(FILES)))
        with pytest.raises(DigestMismatchError, match=rf"{name} of model\.safetensors has"):
            await fetch(weights, 4, 7)
        assert parts_in(tmp_path) == {"layer-00004"}
        assert [file for file in partials_in(tmp_path) if "00005" in file.name] == []
        mirror.files = FILES
        await fetch(weights, 4, 7)
    assert parts_in(tmp_path) == {"layer-00004", "layer-00005", "layer-00006"}


async def test_where_only_a_files_digest_is_known_the_whole_file_is_checked(
    tmp_path: Path,
) -> None:
    manifest = manifest_of(FILES, per_tensor=False)
    name = layer_names(5)[0]
    async with (
        mirror_of(damaged(FILES, name)) as mirror,
        library_in(tmp_path) as library,
    ):
        weights = await library.open(model_at(mirror.url, manifest))
        await fetch(weights, 0, 4)
        with pytest.raises(DigestMismatchError, match=r"model\.safetensors has the SHA-256"):
            await fetch(weights, 0, LAYERS)
        assert parts_in(tmp_path) == set()
        mirror.files = FILES
        await fetch(weights, 0, LAYERS)
    assert tensors_in(weights.folder) == tensors_of(FILES)


async def test_a_fetch_leaves_the_event_loop_to_others(tmp_path: Path) -> None:
    async with mirror_of(FILES) as mirror, library_in(tmp_path) as library:
        weights = await library.open(model_at(mirror.url, manifest_of(FILES)))
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with ending_tasks() as tasks:
            tasks.create_task(count_turns())
            await fetch(weights, 0, LAYERS)
        assert turns > len(mirror.weight_requests)
