import json

import pytest

from meshnet_common.shard_range import ShardRange
from meshnet_common.weights.errors import HeaderError
from meshnet_common.weights.headers import PREFIX_BYTES, header_bytes
from meshnet_common.weights.manifest import FileRecord
from meshnet_worker.weights.errors import DigestMismatchError
from meshnet_worker.weights.layout import PART_NAME, Layout, SourceFile, check_start
from tests.weights import LAYERS, checkpoint, layer_names, safetensors, tensor_sizes


def source_file(content: bytes, name: str = "model.safetensors") -> SourceFile:
    length = header_bytes(content[:PREFIX_BYTES], len(content))
    return SourceFile(name=name, size_bytes=len(content), start=content[: PREFIX_BYTES + length])


def layout_of(is_tied: bool = True, files: int = 1) -> Layout:
    content = checkpoint(is_tied=is_tied, files=files)
    names = [name for name in content if name.endswith(".safetensors")]
    return Layout(tuple(source_file(content[name], name) for name in names), LAYERS)


def names_of(layout: Layout, start: int, end: int) -> list[str]:
    return [part.name for part in layout.parts_of(ShardRange(start, end))]


@pytest.mark.parametrize(
    ("is_tied", "start", "end", "ends"),
    [
        (True, 0, 2, ["embeddings", "norms"]),
        (True, 5, 7, []),
        (True, 10, 12, ["norms", "embeddings"]),
        (False, 10, 12, ["norms", "output"]),
        (True, 0, 12, ["embeddings", "norms"]),
        (False, 0, 12, ["embeddings", "norms", "output"]),
    ],
)
def test_a_range_has_its_layers_and_the_ends_of_the_model_that_it_needs(
    is_tied: bool, start: int, end: int, ends: list[str]
) -> None:
    names = names_of(layout_of(is_tied), start, end)
    assert sorted(names) == sorted([*ends, *(f"layer-{n:05d}" for n in range(start, end))])


def test_tensors_keep_the_order_of_their_source_also_over_two_files() -> None:
    layout = layout_of(files=5)
    for part in layout.all_parts:
        places = [(piece.file, piece.tensor.start) for piece in part.pieces]
        assert places == sorted(places)
        assert sum(place + piece.size_bytes for piece, place in [list(part.places())[-1]]) == (
            part.size_bytes
        )


def test_the_index_names_a_part_for_every_tensor() -> None:
    weight_map = json.loads(layout_of().index())["weight_map"]
    assert weight_map.keys() == tensor_sizes().keys()
    assert weight_map[layer_names(3)[0]] == "layer-00003.safetensors"


def test_a_tensor_in_two_files_is_refused() -> None:
    file = safetensors(tensor_sizes())
    with pytest.raises(HeaderError, match="is in two files"):
        Layout((source_file(file, "a"), source_file(file, "b")), LAYERS)


def test_a_file_is_whole_only_if_no_byte_of_it_is_left_out() -> None:
    layout = layout_of()
    pieces = layout.whole_file(layout.files[0])
    assert pieces is not None
    assert [piece.name for piece in pieces] == list(tensor_sizes())
    with_mask = source_file(safetensors({"a.rotary.inv_freq": 400, **tensor_sizes()}))
    layout = Layout((with_mask,), LAYERS)
    assert layout.whole_file(with_mask) is None


def test_a_bad_header_is_told_with_its_files_name() -> None:
    file = SourceFile(name="x.safetensors", size_bytes=9, start=bytes(8) + b"{")
    with pytest.raises(HeaderError, match=r"x\.safetensors: It is not the JSON"):
        Layout((file,), LAYERS)


@pytest.mark.parametrize(
    "known",
    [{"size_bytes": 3}, {"size_bytes": 0, "header_sha256": "0" * 64}],
    ids=["size", "start"],
)
def test_a_file_that_begins_otherwise_is_refused(known: dict[str, object]) -> None:
    file = source_file(safetensors(tensor_sizes()))
    with pytest.raises(DigestMismatchError, match=r"model\.safetensors has"):
        check_start(file, FileRecord(name=file.name, **known))  # type: ignore[arg-type] # by table


def test_every_part_is_named_as_parts_are() -> None:
    layout = layout_of(is_tied=False)
    assert all(PART_NAME.fullmatch(part.name) for part in layout.all_parts)
    assert PART_NAME.fullmatch("model-00001-of-00002") is None
