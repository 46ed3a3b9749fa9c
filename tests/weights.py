"""Small checkpoints of random bytes, and a server on loopback that gives them away by ranges."""

import asyncio
import hashlib
import json
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from aiohttp import web

from meshnet_common.edge.serving import listening
from meshnet_common.weights.headers import PREFIX_BYTES, header_bytes, place_tensors
from meshnet_common.weights.manifest import INDEX_FILE, TEXT_FILES, FileRecord, Manifest

LAYERS = 12
LAYER_BYTES = 100_000
EMBEDDING_BYTES = 150_000
NORM_BYTES = 400
CONFIG = b'{"model_type": "llama"}'


def layer_names(layer: int) -> tuple[str, str]:
    return f"model.layers.{layer}.mlp.weight", f"model.layers.{layer}.norm.weight"


def tensor_sizes(layers: int = LAYERS, is_tied: bool = True) -> dict[str, int]:
    """Names and bytes in the order of a published file, which is that of the names."""
    sizes = {"model.embed_tokens.weight": EMBEDDING_BYTES, "model.norm.weight": NORM_BYTES}
    for layer in range(layers):
        matrix, norm = layer_names(layer)
        sizes |= {matrix: LAYER_BYTES - 400, norm: 400}
    if not is_tied:
        sizes["lm_head.weight"] = EMBEDDING_BYTES
    return dict(sorted(sizes.items()))


def safetensors(sizes: Mapping[str, int], seed: int = 1) -> bytes:
    entries, offset = {}, 0
    for name, size in sizes.items():
        is_matrix = size > 400
        shape = [size // 100, 50] if is_matrix else [size // 2]
        entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + random.Random(seed).randbytes(offset)


def checkpoint(layers: int = LAYERS, is_tied: bool = True, files: int = 1) -> dict[str, bytes]:
    """The files of a model's folder, its weights in one file or in several with an index."""
    sizes = tensor_sizes(layers, is_tied)
    if files == 1:
        return {"config.json": CONFIG, "model.safetensors": safetensors(sizes)}
    names = list(sizes)
    content: dict[str, bytes] = {"config.json": CONFIG}
    weight_map: dict[str, str] = {}
    for number in range(files):
        held = names[number * len(names) // files : (number + 1) * len(names) // files]
        file = f"model-{number + 1:05d}-of-{files:05d}.safetensors"
        content[file] = safetensors({name: sizes[name] for name in held}, seed=number)
        weight_map |= dict.fromkeys(held, file)
    content[INDEX_FILE] = json.dumps({"weight_map": weight_map}).encode()
    return content


def tensors_of(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Every tensor's bytes, as they are published."""
    found = {}
    for name, content in files.items():
        if name.endswith(".safetensors"):
            length = header_bytes(content[:PREFIX_BYTES], len(content))
            for placed in place_tensors(content[8 : 8 + length], len(content)):
                found[placed.entry.name] = content[placed.start : placed.end]
    return found


def manifest_of(files: Mapping[str, bytes], per_tensor: bool = True) -> Manifest:
    """What an Operator with a copy knows: digests of tensors, or only of whole files."""
    records = []
    for name, content in sorted(files.items()):
        if name in TEXT_FILES:
            digest = hashlib.sha256(content).hexdigest()
            records.append(FileRecord(name=name, size_bytes=len(content), sha256=digest))
        elif name.endswith(".safetensors"):
            records.append(_weight_record(name, content, per_tensor))
    return Manifest(files=tuple(records))


def _weight_record(name: str, content: bytes, per_tensor: bool) -> FileRecord:
    length = header_bytes(content[:PREFIX_BYTES], len(content))
    tensors = tensors_of({name: content})
    digests = {tensor: hashlib.sha256(data).hexdigest() for tensor, data in tensors.items()}
    return FileRecord(
        name=name,
        size_bytes=len(content),
        sha256="" if per_tensor else hashlib.sha256(content).hexdigest(),
        header_sha256=hashlib.sha256(content[: 8 + length]).hexdigest(),
        tensors=digests if per_tensor else {},
    )


class SmallMirror:
    """Serves files below `/model/`; tests change its manners by setting its attributes."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = dict(files)
        self.url = ""
        self.sent_bytes = 0
        self.requests: list[tuple[str, str]] = []
        self.ignores_ranges = False
        self.cut_after_bytes: int | None = None
        """Break each answer off after so many bytes."""
        self.statuses: list[int] = []
        """Statuses to answer to the next requests, before all goes well again."""
        self.stall_after_bytes: int | None = None
        """Send so many bytes in all, then wait for `resumed`."""
        self.stalled = asyncio.Event()
        self.resumed = asyncio.Event()
        self.extra_headers: dict[str, str] = {}
        self.etag = '"1"'

    @property
    def weight_requests(self) -> list[str]:
        return [wanted for name, wanted in self.requests if name.endswith(".safetensors")]

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/model/{name}", self.serve)
        return app

    async def serve(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        self.requests.append((name, request.headers.get("Range", "")))
        if self.statuses:
            return web.Response(status=self.statuses.pop(0))
        content = self.files.get(name)
        if content is None:
            return web.Response(status=404)
        wanted = request.http_range
        headers = {"ETag": self.etag, **self.extra_headers}
        status, body = 200, content
        if wanted.start is not None and not self.ignores_ranges:
            if wanted.start >= len(content):
                return web.Response(status=416)
            body = content[wanted]
            last = wanted.start + len(body) - 1
            status = 206
            headers.setdefault("Content-Range", f"bytes {wanted.start}-{last}/{len(content)}")
        response = web.StreamResponse(status=status, headers=headers)
        response.content_length = len(body)
        await response.prepare(request)
        await self._send(request, response, body, is_weights=name.endswith(".safetensors"))
        return response

    async def _send(
        self, request: web.Request, response: web.StreamResponse, body: bytes, *, is_weights: bool
    ) -> None:
        step = 16 << 10
        for start in range(0, len(body), step):
            chunk = body[start : start + step]
            limit = self.cut_after_bytes if is_weights else None
            if limit is not None and start + len(chunk) > limit:
                chunk = chunk[: max(limit - start, 0)]
                await response.write(chunk)
                self.sent_bytes += len(chunk)
                assert request.transport is not None
                request.transport.close()
                return
            if self.stall_after_bytes is not None and self.sent_bytes >= self.stall_after_bytes:
                self.stalled.set()
                await self.resumed.wait()
            try:
                await response.write(chunk)
            except ConnectionResetError:
                return
            self.sent_bytes += len(chunk)


@asynccontextmanager
async def mirror_of(files: Mapping[str, bytes]) -> AsyncIterator[SmallMirror]:
    mirror = SmallMirror(files)
    async with listening(mirror.application(), "127.0.0.1", 0) as url:
        mirror.url = f"{url}/model"
        yield mirror
        mirror.resumed.set()
