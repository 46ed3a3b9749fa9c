"""Which of transformers' causal language models can be split over Hops, shown by running them.

Of each a tiny random model is saved, loaded in parts and run as the engine does it: several
Sessions in one Batch, Prefill Chunks and Decode Steps mixed. Its logits must be those of the whole
model in transformers, Session by Session, in float32: in one pass, or else in the same chunks. Some
ropes that configurations do not have by default are rows of their own, "type (rope)".
`--write` renews docs/architectures.md and the list that `preset add` refuses by. The last line is
one JSON object.
"""

import argparse
import json
import logging
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch
import transformers
from transformers import DynamicCache, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from bench.tiny_models import ROPES, WORDS, random_model, tiny_config
from meshnet_common.errors import MeshnetError
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.presets.checkpoint import make_preset
from meshnet_tracker.presets.folder import read_folder
from meshnet_worker.engine.attention import FlatSegment
from meshnet_worker.engine.cached import SessionCache
from meshnet_worker.engine.kv import SessionKv
from meshnet_worker.engine.probe import UnsupportedModelError
from meshnet_worker.engine.shard import Shard, ShardSource

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "architectures.md"
UNSUPPORTED = ROOT / "meshnet_tracker" / "presets" / "unsupported.json"

BATCHES = (
    ((0, 13), (1, 1), (2, 12)),
    ((0, 9), (2, 10), (1, 1)),
    ((2, 1), (0, 1), (1, 1)),
    ((1, 5), (0, 1)),
    ((0, 1), (1, 1), (2, 1)),
)
"""Of each Batch the (session, tokens) in it."""

SESSIONS = 3
POSITIONS = 64
PARTS = (2, 3)
RELATIVE_ERROR = 1e-4
"""Of the largest logit."""

TOGETHER = "many Sessions in one Batch"
ALONE = "Session by Session"
CHUNKED = ", as transformers does in the same chunks"

Logits = list[torch.Tensor]
Hop = tuple[Shard, ShardRange]


class MismatchError(Exception):
    """Something was computed or stored otherwise than it must be."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one row: `passed`, `failed` or `unsupported`."""

    name: str
    status: str
    remark: str


def names() -> list[str]:
    """Every model type that has a causal language model, and those with another rope, sorted."""
    return sorted((*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *ROPES))


def check(name: str, parts: Sequence[int] = PARTS) -> Outcome:
    """Try one row over each number of Hops."""
    try:
        model = random_model(tiny_config(name))
        whole = _whole(model)
    except ImportError as error:
        return Outcome(name, "unsupported", f"It needs {needed(error)}.")
    except Exception as error:  # noqa: BLE001 - a model's own code raises anything
        return Outcome(name, "unsupported", f"No tiny model of it could be tried. {_line(error)}")
    try:
        return Outcome(name, "passed", _try(model, whole, parts))
    except UnsupportedModelError as error:
        return Outcome(name, "unsupported", error.detail.replace("|", "/"))
    except Exception as error:  # noqa: BLE001 - a model's own code raises anything
        return Outcome(name, "failed", _line(error))


def needed(error: ImportError) -> str:
    """The packages that something lacks, by what it says."""
    packages = sorted(set(re.findall(r"`pip install ([\w.-]+)", str(error))))
    if not packages:
        return f"the package {error.name or 'that it names'}"
    return f"the package{'s' * (len(packages) > 1)} {' and '.join(packages)}"


def document(outcomes: Iterable[Outcome]) -> str:
    """The table of docs/architectures.md."""
    listed = sorted(outcomes, key=lambda outcome: outcome.name)
    counts = Counter(outcome.status for outcome in listed)
    lines = [
        "# Architectures",
        "",
        f"Every causal language model of transformers {transformers.__version__}, by its model"
        " type, as `python -m bench.architectures --write` found it: a tiny random model, split"
        " over 2 and 3 Hops, float32, against the whole model in transformers.",
        "",
        f"{counts['passed']} pass, {counts['failed']} fail, {counts['unsupported']} are refused."
        f" Of these, {sum(o.name in ROPES for o in listed)} are a model type with another rope,"
        " which is named in brackets, and Sessions longer than it was trained on."
        f" '{CHUNKED[2:].capitalize()}' marks those of which transformers itself gives other"
        " numbers in one pass than in the chunks that the Hops were given.",
        "",
        "| model type | outcome | how, or why not |",
        "|---|---|---|",
    ]
    lines += [f"| {o.name} | {o.status} | {o.remark} |" for o in listed]
    return "\n".join(lines) + "\n"


def written() -> dict[str, Outcome]:
    """Read the rows of docs/architectures.md, by name."""
    lines = DOCUMENT.read_text().splitlines()
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines if line[:2] == "| "]
    return {row[0]: Outcome(*row) for row in rows[1:]}


def refusals(outcomes: Iterable[Outcome]) -> str:
    """The list that the Tracker reads: names with the reason against them."""
    reasons = {o.name: o.remark for o in outcomes if o.status != "passed"}
    return json.dumps(reasons, indent=1, sort_keys=True, ensure_ascii=True) + "\n"


def main() -> None:
    """Try all, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--write", action="store_true", help="renew the table and the list, or the named rows"
    )
    parser.add_argument("names", nargs="*")
    chosen = parser.parse_args()
    outcomes = []
    for name in chosen.names or names():
        outcome = check(name)
        outcomes.append(outcome)
        print(f"{name:26} {outcome.status:12} {outcome.remark}", flush=True)
    if chosen.write:
        kept = written() if chosen.names else {}
        rows = {**kept, **{outcome.name: outcome for outcome in outcomes}}.values()
        DOCUMENT.write_text(document(rows))
        UNSUPPORTED.write_text(refusals(rows))
    counts = Counter(outcome.status for outcome in outcomes)
    print(json.dumps({status: counts[status] for status in ("passed", "failed", "unsupported")}))


def quiet() -> None:
    """Leave out what tiny models make transformers say."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()


def _try(model: PreTrainedModel, whole: Logits, parts: Sequence[int]) -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model.save_pretrained(folder)
        shards: list[Shard] = []
        chunked = ""
        for count in parts:
            hops = _load(folder, count)
            kv = [[SessionKv.alone(POSITIONS, range(POSITIONS)) for _ in IDS] for _ in hops]
            got = _run(hops, kv)
            if not _are_equal(got, whole):
                if not _are_equal(got, _continued(model)):
                    gap = _gap(got, whole)
                    raise MismatchError(f"Over {count} Hops its logits differ by {gap:.2g}.")
                chunked = CHUNKED
            _check_preset(folder, hops, kv)
            shards += [shard for shard, _ in hops]
    return (ALONE if shards[0].runs_alone else TOGETHER) + chunked


def _load(folder: Path, parts: int) -> list[Hop]:
    source = ShardSource(str(folder), torch.float32, torch.device("cpu"))
    shards = [Shard(source) for _ in range(parts)]
    bounds = [shards[0].layer_count * part // parts for part in range(parts + 1)]
    ranges = [ShardRange(start, end) for start, end in pairwise(bounds)]
    for shard, shard_range in zip(shards, ranges, strict=True):
        for _ in shard.load(shard_range):
            pass
    return list(zip(shards, ranges, strict=True))


def _run(hops: Sequence[Hop], kv: Sequence[Sequence[SessionKv]]) -> Logits:
    got: list[list[torch.Tensor]] = [[] for _ in IDS]
    at = [0] * SESSIONS
    for batch in BATCHES:
        rows = torch.tensor([i for s, tokens in batch for i in IDS[s][at[s] : at[s] + tokens]])
        every_row = range(len(rows))
        for place, (shard, shard_range) in enumerate(hops):
            segments, row = [], 0
            for session, tokens in batch:
                segments.append(FlatSegment(kv[place][session], row, tokens, at[session]))
                row += tokens
            rows = shard.run(shard_range, rows, segments, every_row)
        for (session, tokens), logits in zip(
            batch, rows.split([tokens for _, tokens in batch]), strict=True
        ):
            got[session].append(logits)
            at[session] += tokens
    return [torch.cat(parts) for parts in got]


@torch.inference_mode()
def _whole(model: PreTrainedModel) -> Logits:
    return [model(input_ids=torch.tensor([ids]), use_cache=False).logits[0] for ids in IDS]


@torch.inference_mode()
def _continued(model: PreTrainedModel) -> Logits:
    """The whole model's logits where it takes each Session in the same chunks, through its Cache.

    Some models amplify the last bits so much that this differs from one pass over everything, and
    some ropes change where a Session becomes longer than they were trained on.
    """
    logits = []
    for session, ids in enumerate(IDS):
        cache, at, parts = DynamicCache(config=model.config), 0, []
        for tokens in [tokens for batch in BATCHES for s, tokens in batch if s == session]:
            chunk = torch.tensor([ids[at : at + tokens]])
            parts.append(model(input_ids=chunk, cache=cache, use_cache=True).logits[0])
            at += tokens
        logits.append(torch.cat(parts))
    return logits


def _are_equal(got: Logits, expected: Logits) -> bool:
    largest = max(float(logits.abs().max()) for logits in expected)
    return _gap(got, expected) <= RELATIVE_ERROR * largest


def _gap(got: Logits, expected: Logits) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(got, expected, strict=True))


def _check_preset(folder: Path, hops: Sequence[Hop], kv: Sequence[Sequence[SessionKv]]) -> None:
    """The Tracker's figures must cover what the engine stores per position and Layer."""
    try:
        checkpoint = read_folder(folder)
        # Under a name of its own, so that the list of refused types does not come into it.
        checkpoint = replace(checkpoint, config={**checkpoint.config, "model_type": "tiny"})
        variant = make_preset(checkpoint, "tiny", ("float32",)).preset.variants[0]
    except MeshnetError as error:
        raise UnsupportedModelError(f"No preset can be made of it. {error}") from error
    figure = variant.kv_bytes_per_token_per_layer
    stored = max(_stored_bytes(shard, r, own) for (shard, r), own in zip(hops, kv, strict=True))
    if stored > figure:
        raise MismatchError(f"A position takes {stored} bytes a Layer; its preset says {figure}.")


def _stored_bytes(shard: Shard, shard_range: ShardRange, kv: Sequence[SessionKv]) -> int:
    if not shard.runs_alone:
        return max(shard.kv_values) * torch.float32.itemsize
    longest = kv[0].cache
    if not isinstance(longest, SessionCache):
        raise MismatchError("A Session kept no Cache.")
    layers = longest.cache.layers[shard_range.start : shard_range.end]
    pairs = [(getattr(la, "keys", None), getattr(la, "values", None)) for la in layers]
    tensors = [sum(int(t.numel()) for t in pair if t is not None) for pair in pairs]
    return -(-max(tensors) // longest.held) * torch.float32.itemsize


def _prompt(session: int) -> list[int]:
    tokens = sum(tokens for batch in BATCHES for s, tokens in batch if s == session)
    return [1 + (p * 37 + p // 11 + session * 17) % (WORDS - 1) for p in range(tokens)]


IDS = [_prompt(session) for session in range(SESSIONS)]


def _line(error: Exception) -> str:
    text = " ".join(str(error).split()) or "no message"
    return f"{type(error).__name__}: {text[:160].rstrip('.')}.".replace("|", "/")


if __name__ == "__main__":
    quiet()
    main()
