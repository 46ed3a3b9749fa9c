"""What each Variant of the real model costs, and how near it stays to float32.

Every Variant is loaded and run by an engine's own code in a process of its own, with one thread and
one stream. Quality is over a fixed text: mean Kullback-Leibler divergence of the next-token
distributions from those of float32, and how often both prefer the same token. SmolLM2 is published
here as Q4_1, so q4_1 loses nothing that the other Variants have.
"""

import gc
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, dequantize
from gguf.quants import quantize
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from demo.model import ensure_model, gguf_file
from meshnet_common.presets import DTYPE_BYTES
from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine.attention import FlatSegment
from meshnet_worker.engine.kv import SessionKv
from meshnet_worker.engine.loader import Loader
from meshnet_worker.engine.quantization import PACKERS
from meshnet_worker.engine.shard import Shard
from meshnet_worker.engine_port import LoadLayers

REFERENCE = "float32"
GGUFS = ("q4_1", "q8_0")
VARIANTS = (REFERENCE, "bfloat16", "float16", *PACKERS, *GGUFS)
LAYERS = 30
CHUNK_TOKENS = 128
NEW_TOKENS = 32
LIMIT_SECONDS = 120.0
TEXT = """
The harbour wakes before the town does. At five the first boats come in past the breakwater, low in
the water and followed by gulls, and by six the fish hall is loud with crates, ice and bargaining.
Whoever buys here knows what was caught where, and how long ago; a good eye is worth more than any
scale. Behind the hall an old woman mends nets as her mother did, with a wooden needle and a knot
that has no name in any book. She says that rope has changed and that the knot has not. On the hill
above, the lighthouse has been empty for thirty years. A computer in another city turns its lamp on
and off, and once a month an engineer climbs the stairs, wipes the lens and writes a line in a diary
that nobody else reads. In winter the storms take a little of the cliff each year, and the council
has measured that the path will be gone in twenty. People walk it all the same. They walk it with
dogs and children, they stop at the bench where the view is best, and they talk about the weather,
about the price of bread, and about those who have moved away and who still ask, whenever they ring,
whether the light can be seen from the kitchen window. It can. On clear nights it can be seen from
much farther than that, from ships whose crews do not know what the place is called, and who only
note in passing that the lamp burns, that it turns every nine seconds, and that all is well.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One Variant's figures; bytes, seconds, and quality against float32."""

    disk_bytes: int
    read_bytes: int
    load_seconds: float
    weight_bytes: int
    resident_bytes: int
    tokens_per_second: float
    mean_kl: float
    top1_agreement: float


def main() -> None:
    """Print the table and, as the last line, the figures as JSON."""
    with TemporaryDirectory(prefix="meshnet-bench-") as scratch:
        make_q8_0(gguf_file(), Path(scratch) / "q8_0.gguf")
        rows = {variant: _in_own_process(variant, scratch) for variant in VARIANTS}
    table = Table(title="SmolLM2-135M, one stream, one thread")
    headings = ("disk MB", "read MB", "load s", "weights MB", "resident MB", "tokens/s", "KL")
    for heading in ("variant", *headings, "same top token"):
        table.add_column(heading, justify="right")
    for variant, row in rows.items():
        table.add_row(variant, *_cells(row))
    Console(width=110).print(table)
    print("read: from storage, with the page cache dropped first and read-ahead included")
    print(
        "resident: growth of the process's own memory; load: without importing bitsandbytes (2 s)"
    )
    print("int8 and nf4: bitsandbytes is slow on CPUs without AVX-512 and is made for CUDA")
    print(json.dumps({variant: asdict(row) for variant, row in rows.items()}))


def make_q8_0(source: Path, file: Path) -> None:
    """Write a GGUF file's weights anew as Q8_0, with no tokenizer."""
    reader = GGUFReader(source)
    writer = GGUFWriter(file, "llama")
    writer.add_block_count(LAYERS)
    plain, kind = GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        packed = values if tensor.tensor_type == plain else quantize(values, kind)
        writer.add_tensor(tensor.name, packed, raw_dtype=plain if packed is values else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def measure(variant: str, scratch: Path) -> Row:
    """Load and run one Variant in this process."""
    torch.set_num_threads(1)
    folder = ensure_model()
    gguf = {"q4_1": str(gguf_file()), "q8_0": str(scratch / "q8_0.gguf")}.get(variant, "")
    weights = [Path(gguf)] if gguf else sorted(folder.glob("*.safetensors"))
    if variant in PACKERS:
        # Imports bitsandbytes, which is not what is measured.
        PACKERS[variant](torch.ones(64, 64).bfloat16())
    _drop_from_cache(weights)
    resident, read, started = _resident_bytes(), _read_bytes(), time.perf_counter()
    loader = Loader(torch.device("cpu"), lambda _event, _payload: None)
    dtype = variant if variant in DTYPE_BYTES else "bfloat16"
    loader.add(LoadLayers(0, str(folder), dtype, 0, LAYERS, variant, gguf))
    while loader.has_work:
        loader.step()
    shard, whole = loader.shards[0], ShardRange(0, LAYERS)
    seconds, read = time.perf_counter() - started, _read_bytes() - read
    gc.collect()
    resident = _resident_bytes() - resident
    ids: list[int] = AutoTokenizer.from_pretrained(folder)(TEXT)["input_ids"]
    mean_kl, agreement = _quality(_logits(shard, ids), scratch)
    return Row(
        disk_bytes=sum(file.stat().st_size for file in weights),
        read_bytes=read,
        load_seconds=round(seconds, 2),
        weight_bytes=shard.bytes_of(whole),
        resident_bytes=resident,
        tokens_per_second=round(_pace(shard, ids[:64]), 2),
        mean_kl=mean_kl,
        top1_agreement=agreement,
    )


def _in_own_process(variant: str, scratch: str) -> Row:
    command = (sys.executable, "-m", "bench.variants", variant, scratch)
    ended = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, timeout=LIMIT_SECONDS, text=True
    )
    return Row(**json.loads(ended.stdout.splitlines()[-1]))


def _run(shard: Shard, kv: SessionKv, ids: list[int], start: int, sampled: range) -> torch.Tensor:
    segments = [FlatSegment(kv, 0, len(ids), start)]
    return shard.run(ShardRange(0, LAYERS), torch.tensor(ids), segments, sampled)


def _logits(shard: Shard, ids: list[int]) -> torch.Tensor:
    """Return the logits of every position, computed in Prefill Chunks."""
    kv = SessionKv.alone(len(ids), range(LAYERS))
    chunks = (
        (ids[start : start + CHUNK_TOKENS], start) for start in range(0, len(ids), CHUNK_TOKENS)
    )
    return torch.cat([_run(shard, kv, part, start, range(len(part))) for part, start in chunks])


def _quality(logits: torch.Tensor, scratch: Path) -> tuple[float, float]:
    """Compare with what float32 left behind; float32 leaves it."""
    file = scratch / "reference.safetensors"
    if not file.exists():
        save_file({"logits": logits.contiguous()}, file)
    reference = load_file(file)["logits"]
    expected, found = reference.log_softmax(-1), logits.log_softmax(-1)
    mean_kl = (expected.exp() * (expected - found)).sum(-1).mean()
    agreement = (reference.argmax(-1) == logits.argmax(-1)).float().mean()
    return round(float(mean_kl), 5), round(float(agreement), 4)


def _pace(shard: Shard, prompt: list[int]) -> float:
    """Tokens per second of one stream's Decode Steps."""
    kv = SessionKv.alone(len(prompt) + NEW_TOKENS + 1, range(LAYERS))
    token = int(_run(shard, kv, prompt, 0, range(len(prompt) - 1, len(prompt))).argmax())
    started = time.perf_counter()
    for position in range(len(prompt), len(prompt) + NEW_TOKENS):
        token = int(_run(shard, kv, [token], position, range(1)).argmax())
    return NEW_TOKENS / (time.perf_counter() - started)


def _drop_from_cache(files: list[Path]) -> None:
    """Have the files read from storage next, not out of the page cache."""
    for file in files:
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _resident_bytes() -> int:
    """Measure this process's own memory, without mapped files."""
    return _proc("status", "RssAnon:") * 1024


def _read_bytes() -> int:
    """Count what this process has read from storage."""
    return _proc("io", "read_bytes:")


def _proc(file: str, field: str) -> int:
    words = chain.from_iterable(
        line.split() for line in Path(f"/proc/self/{file}").read_text().splitlines()
    )
    for word in words:
        if word == field:
            return int(next(words))
    raise LookupError(field)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        f"{row.disk_bytes / 1e6:.0f}",
        f"{row.read_bytes / 1e6:.0f}",
        f"{row.load_seconds:.2f}",
        f"{row.weight_bytes / 1e6:.1f}",
        f"{row.resident_bytes / 1e6:.1f}",
        f"{row.tokens_per_second:.1f}",
        f"{row.mean_kl:.5f}",
        f"{row.top1_agreement:.1%}",
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(asdict(measure(sys.argv[1], Path(sys.argv[2])))))
    else:
        main()
