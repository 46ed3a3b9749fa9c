"""A model whose files are on this machine: they are read where they lie, and never changed."""

from dataclasses import dataclass
from pathlib import Path

from meshnet_common.edge.local_files import read_file_start
from meshnet_common.shard_range import ShardRange
from meshnet_common.weights.manifest import TEXT_FILES, Manifest
from meshnet_worker.weights.errors import WeightsNotFoundError, mismatch
from meshnet_worker.weights.hashing import OnHashed, ignore_hashed, sha256_in_steps
from meshnet_worker.weights.layout import Layout, SourceFile, check_start
from meshnet_worker.weights.part_files import disk_errors
from meshnet_worker.weights.progress import OnProgress
from meshnet_worker.weights.threads import in_thread


@dataclass(frozen=True, slots=True)
class _Check:
    """Bytes [start, end) of a file, the digest that they should have, and what they are."""

    file: Path
    start: int
    end: int
    expected: str
    what: str


class LocalModel:
    """A folder; what its manifest knows is checked once for each byte that is loaded."""

    def __init__(self, folder: Path, manifest: Manifest, layer_count: int | None) -> None:
        self.folder = folder
        self._manifest = manifest
        self._layer_count = layer_count
        self._verified: set[tuple[str, int, int]] = set()
        self._layout: Layout | None = None

    @property
    def is_checked_in_pieces(self) -> bool:
        """Whole files are here, and are checked before anything of them is used."""
        return True

    async def check_text(self) -> None:
        """Raise DigestMismatchError where a configuration or tokenizer file differs."""
        for record in self._manifest.files:
            file = self.folder / record.name
            if record.name in TEXT_FILES and record.sha256:
                check = _Check(file, 0, _size_of(file), record.sha256, record.name)
                await self._check(check, ignore_hashed)

    async def fetch(self, shard_range: ShardRange, on_progress: OnProgress) -> bool:
        """Check the range's tensors; raises a WeightsError or CheckpointError."""
        checks = await in_thread(lambda: self._checks(shard_range))
        total = sum(check.end - check.start for check in checks)
        done = 0

        def hashed(size_bytes: int) -> None:
            nonlocal done
            done += size_bytes
            on_progress(done, total)

        for check in checks:
            await self._check(check, hashed)
        return bool(checks)

    def keep(self, shard_range: ShardRange | None) -> None:
        """Nothing is held: the folder is its owner's."""

    def _checks(self, shard_range: ShardRange) -> list[_Check]:
        records = {
            record.name: record
            for record in self._manifest.files
            if record.tensors or (record.sha256 and record.name not in TEXT_FILES)
        }
        if not records:
            return []
        layout = self._layout = self._layout or self._read_layout()
        pieces = [piece for part in layout.parts_of(shard_range) for piece in part.pieces]
        checks: dict[_Check, None] = {}
        for piece in pieces:
            record = records.get(piece.file)
            if record is None:
                continue
            file, tensor = self.folder / piece.file, piece.tensor
            if expected := record.tensors.get(piece.name):
                what = f"{piece.name} of {file}"
                checks[_Check(file, tensor.start, tensor.end, expected, what)] = None
            elif record.sha256:
                checks[_Check(file, 0, _size_of(file), record.sha256, str(file))] = None
        return list(checks)

    def _read_layout(self) -> Layout:
        names = self._manifest.weight_files
        files = [self._source_file(self.folder / name, name) for name in names]
        return Layout(tuple(files), self._layer_count)

    def _source_file(self, file: Path, name: str) -> SourceFile:
        size_bytes = _size_of(file)
        with disk_errors(file):
            found = SourceFile(name=name, size_bytes=size_bytes, start=read_file_start(file))
        record = self._manifest.file(name)
        assert record is not None
        check_start(found, record)
        return found

    async def _check(self, check: _Check, on_hashed: OnHashed) -> None:
        with disk_errors(check.file):
            key = (str(check.file), check.file.stat().st_mtime_ns, check.start)
            if key in self._verified:
                on_hashed(check.end - check.start)
                return
            found = await sha256_in_steps(check.file, check.start, check.end, on_hashed)
        if found != check.expected:
            raise mismatch(check.what, check.expected, found)
        self._verified.add(key)


def _size_of(file: Path) -> int:
    with disk_errors(file):
        if not file.is_file():
            raise WeightsNotFoundError(f"{file} is missing; copy the whole model there.")
        return file.stat().st_size
