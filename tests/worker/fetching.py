"""A keeper whose model lies on a mirror: its weights come over a line that may stall."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from meshnet_common.errors import MeshnetError
from meshnet_common.protocol.messages import Directive
from tests.weights import SmallMirror, manifest_of, mirror_of
from tests.worker.engines import SharedEngine
from tests.worker.keeping import Keeping
from tests.worker.waiting import SECONDS, ending_tasks


class Fetching:
    """The keeper, the mirror, and the folder that weights are fetched into."""

    def __init__(self, keeping: Keeping, mirror: SmallMirror, folder: Path) -> None:
        self.keeping = keeping
        self.mirror = mirror
        self.folder = folder

    @property
    def parts(self) -> list[str]:
        return sorted(file.stem for file in self.folder.glob("*/*.safetensors"))

    @asynccontextmanager
    async def stalled(self, told: Directive, ending: type[MeshnetError]) -> AsyncIterator[None]:
        """Let a load stall in its download; it must end with this error by the block's end."""
        await self.keeping.library.open(self.keeping.model)
        self.mirror.stall_after_bytes = self.mirror.sent_bytes + 50_000
        async with ending_tasks() as tasks:
            loading = tasks.create_task(self.keeping.refuse(told, ending))
            async with asyncio.timeout(SECONDS):
                await self.mirror.stalled.wait()
                yield
                await loading
        self.mirror.stall_after_bytes = None
        self.mirror.resumed.set()


@asynccontextmanager
async def fetching_keeper(
    shared: SharedEngine, model: Path, folder: Path, *, per_tensor: bool = True
) -> AsyncIterator[Fetching]:
    """Lend a keeper of a copy of this model, known by each tensor's digest or by files' alone."""
    files = _contents(model)
    async with mirror_of(files) as mirror:
        manifest = manifest_of(files, per_tensor=per_tensor)
        keeping = Keeping(shared, folder / "model", source=mirror.url, manifest=manifest)
        yield Fetching(keeping, mirror, folder / "fetched")
        await keeping.library.close()


def _contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}
