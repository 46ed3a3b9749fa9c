"""A model whose parts are fetched from a hub or mirror when they are wanted, and kept."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from meshnet_common.edge.remote_files import RemoteFiles, SourceUnreachableError
from meshnet_common.shard_range import ShardRange
from meshnet_common.weights.manifest import Manifest
from meshnet_worker.weights.assembled import check_assembled, unmark
from meshnet_worker.weights.disk_budget import PartStore
from meshnet_worker.weights.errors import DigestMismatchError
from meshnet_worker.weights.layout import Layout, Part, SourceFile
from meshnet_worker.weights.part_files import PartWriter, disk_errors, hold
from meshnet_worker.weights.planning import FilePlan, wanted_of
from meshnet_worker.weights.progress import LINE_SECONDS, OnProgress, shown_progress
from meshnet_worker.weights.threads import in_thread

BACKOFF_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Waits after tries that brought nothing; after as many in a row it is given up."""
POLL_SECONDS = 0.2

log = structlog.get_logger()


Connect = Callable[[], Awaitable[RemoteFiles]]
"""Reaches the source; asked only when something is to be fetched."""


@dataclass(slots=True)
class _Progress:
    """Bytes of the parts that were not here when the fetch began."""

    total_bytes: int
    on_progress: OnProgress
    done_bytes: int = 0

    def advance(self, size_bytes: int) -> None:
        self.done_bytes += size_bytes
        self.on_progress(self.done_bytes, self.total_bytes)


@dataclass(frozen=True, slots=True)
class _Sink:
    writers: Mapping[str, PartWriter]
    progress: _Progress


class RemoteModel:
    """Parts of one checkpoint in `folder`; those that are kept are locked against eviction."""

    def __init__(
        self,
        connect: Connect,
        store: PartStore,
        folder: Path,
        layout: Layout,
        manifest: Manifest,
    ) -> None:
        self.folder = folder
        self._connect = connect
        self._store = store
        self._layout = layout
        self._manifest = manifest
        self._held: dict[str, int] = {}

    @property
    def is_checked_in_pieces(self) -> bool:
        """Whether no file is known by the digest of all of it alone."""
        records = (self._manifest.file(file.name) for file in self._layout.files)
        return not any(record and record.sha256 and not record.tensors for record in records)

    async def fetch(self, shard_range: ShardRange, on_progress: OnProgress) -> bool:
        """Have a range's parts here, whole and verified.

        Raises SourceError or a WeightsError. What has come stays for the next try, whatever
        happens, a cancellation included.
        """
        parts = self._layout.parts_of(shard_range)
        if missing := self._missing(parts):
            await self._fetch_missing(parts, missing, on_progress)
        names = {piece.file for part in parts for piece in part.pieces}
        is_some_file_checked = await self._check_files(names)
        return is_some_file_checked or any(self._digests(part) for part in parts)

    def keep(self, shard_range: ShardRange | None) -> None:
        """Release all parts but those of a range."""
        kept = self._layout.parts_of(shard_range) if shard_range else ()
        for name in self._held.keys() - {part.name for part in kept}:
            os.close(self._held.pop(name))

    async def _fetch_missing(
        self, parts: Sequence[Part], missing: Sequence[Part], on_progress: OnProgress
    ) -> None:
        unmark(self.folder, {piece.file for part in missing for piece in part.pieces})
        with shown_progress(self.folder.name) as show:

            def tell(bytes_done: int, bytes_total: int) -> None:
                show(bytes_done, bytes_total)
                on_progress(bytes_done, bytes_total)

            progress = _Progress(sum(part.size_bytes for part in missing), tell)
            await self._fetch_parts(parts, progress)

    async def _fetch_parts(self, parts: Sequence[Part], progress: _Progress) -> None:
        loop, said_at = asyncio.get_running_loop(), -LINE_SECONDS
        while missing := self._missing(parts):
            writers: list[PartWriter] = []
            try:
                for part in missing:
                    if (writer := PartWriter.claim(self.folder, part)) is not None:
                        writers.append(writer)
                if writers:
                    await self._fill(writers, progress)
                else:
                    if loop.time() - said_at >= LINE_SECONDS:
                        said_at = loop.time()
                        names = [part.name for part in missing]
                        log.info("another worker of this host fetches them", parts=names)
                    await asyncio.sleep(POLL_SECONDS)
            finally:
                for writer in writers:
                    writer.close()

    def _missing(self, parts: Sequence[Part]) -> list[Part]:
        return [part for part in parts if not self._hold(part)]

    def _hold(self, part: Part) -> bool:
        if part.name not in self._held:
            file = self.folder / part.file_name
            with disk_errors(file):
                descriptor = hold(file, part.size_bytes)
            if descriptor is not None:
                self._held[part.name] = descriptor
        return part.name in self._held

    async def _fill(self, writers: Sequence[PartWriter], progress: _Progress) -> None:
        sink = _Sink({writer.part.name: writer for writer in writers}, progress)
        await in_thread(self._store.make_room)
        remote = await self._connect()
        for writer in writers:
            await self._advance(writer, progress, writer.held_bytes)
        for file in self._layout.files:
            plan = FilePlan(
                wanted
                for writer in writers
                for wanted in wanted_of(writer.part, file.name, writer.held_bytes)
            )
            await self._read(remote, file, plan, sink)

    async def _read(
        self, remote: RemoteFiles, file: SourceFile, plan: FilePlan, sink: _Sink
    ) -> None:
        failures = 0
        while plan.next_extent() is not None:
            received = plan.received_bytes
            reason = f"{file.name}: the answer is cut short."
            try:
                await self._read_extent(remote, file, plan, sink)
            except SourceUnreachableError as error:
                reason = error.detail
            if plan.received_bytes > received:
                failures = 0
                continue
            if failures == len(BACKOFF_SECONDS):
                raise SourceUnreachableError(f"{reason} It was tried {failures + 1} times.")
            log.warning("weights interrupted", reason=reason, tries=failures + 1)
            await asyncio.sleep(BACKOFF_SECONDS[failures])
            failures += 1

    async def _read_extent(
        self, remote: RemoteFiles, file: SourceFile, plan: FilePlan, sink: _Sink
    ) -> None:
        start, end = plan.next_extent() or (0, 0)
        answered_from: int | None = None
        async with aclosing(
            remote.stream(file.name, start, end, file.size_bytes, self._etag(file))
        ) as chunks:
            async for offset, chunk in chunks:
                answered_from = offset if answered_from is None else answered_from
                for name, data in plan.feed(offset, chunk):
                    await self._write(sink.writers[name], data, sink.progress)
                left = plan.next_start
                # A server that ignores ranges sends everything: what else is wanted comes too.
                if left is None or (answered_from == start and left >= end):
                    return

    async def _write(self, writer: PartWriter, data: memoryview, progress: _Progress) -> None:
        await in_thread(lambda: writer.append(data))
        await self._advance(writer, progress, len(data))

    async def _advance(self, writer: PartWriter, progress: _Progress, size_bytes: int) -> None:
        progress.advance(size_bytes)
        if writer.is_complete:
            await writer.verify(self._digests(writer.part))
            await in_thread(partial(self._finish, writer))

    def _finish(self, writer: PartWriter) -> None:
        # Noted in the same thread: a cancelled fetch still knows what it holds.
        self._held[writer.part.name] = writer.finish()

    def _etag(self, file: SourceFile) -> str:
        """The server's own mark of a version, where nothing better is known of a file's bytes."""
        record = self._manifest.file(file.name)
        is_known = record is not None and (record.tensors or record.sha256)
        return "" if is_known or self._manifest.revision else file.etag

    def _digests(self, part: Part) -> dict[str, str]:
        records = {record.name: record for record in self._manifest.files}
        return {
            piece.name: digest
            for piece in part.pieces
            if (record := records.get(piece.file)) is not None
            and (digest := record.tensors.get(piece.name)) is not None
        }

    async def _check_files(self, names: set[str]) -> bool:
        """Check whole files, where only their own digests are known; answers whether any was."""
        is_some_checked = False
        for file in self._layout.files:
            record = self._manifest.file(file.name)
            if file.name in names and record is not None and record.sha256 and not record.tensors:
                try:
                    checking = check_assembled(self.folder, self._layout, file, record.sha256)
                    is_some_checked |= await checking
                except DigestMismatchError:
                    self._release_what_is_gone()
                    raise
        return is_some_checked

    def _release_what_is_gone(self) -> None:
        for part in self._layout.all_parts:
            if part.name in self._held and not (self.folder / part.file_name).exists():
                os.close(self._held.pop(part.name))
