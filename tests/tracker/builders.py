"""Values for tests: each builder takes what matters in a test and fills in the rest."""

from meshnet_common.ids import WorkerId
from meshnet_common.presets import ModelPreset, Variant
from meshnet_common.protocol.messages import (
    Capabilities,
    DirectiveKind,
    DirectiveReason,
    Heartbeat,
    RegisterWorker,
    ShardReport,
    ShardState,
)
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.snapshot import RebalanceDirective, VariantKey
from meshnet_tracker.records import PresetRecord

NOW = 1_000_000.0
MODEL = VariantKey("tiny", "bfloat16")
DIGEST = "digest-of-bfloat16"
TOKEN_SHA256 = "0" * 64


def variant(quantization: str = "bfloat16", layers: int = 6, layer_bytes: int = 1000) -> Variant:
    return Variant(
        quantization=quantization,
        digest=f"digest-of-{quantization}",
        layer_bytes=(layer_bytes,) * layers,
        embedding_bytes=500,
        head_bytes=700,
        kv_bytes_per_token_per_layer=64,
        wire_dtype="bfloat16",
    )


def preset(
    name: str = "tiny", layers: int = 6, quantizations: tuple[str, ...] = ("bfloat16",)
) -> PresetRecord:
    model = ModelPreset(
        name=name,
        source="/models/tiny",
        architecture="LlamaForCausalLM",
        hidden_size=16,
        vocabulary_size=100,
        context_tokens=256,
        default_quantization=quantizations[0],
        variants=tuple(variant(name, layers) for name in quantizations),
    )
    return PresetRecord(model, (variant("nf4", layers, layer_bytes=300),), NOW)


def registration(
    worker_id: str = "w1",
    url: str = "http://127.0.0.1:7001",
    vram_bytes: int = 100_000,
    speed: float = 10.0,
) -> RegisterWorker:
    return RegisterWorker(
        worker_id=worker_id,
        url=url,
        version="0.1.0",
        capabilities=Capabilities(
            vram_bytes=vram_bytes,
            quantizations=("bfloat16", "float32"),
            benchmark_tokens_per_sec=speed,
            benchmark_model="layer",
            device="cpu",
        ),
        fingerprint="",
    )


def shard(
    start: int,
    end: int,
    state: ShardState = ShardState.READY,
    model: VariantKey = MODEL,
    bytes_done: int = 0,
    digest: str = "",
) -> ShardReport:
    return ShardReport(
        model=model.model,
        quantization=model.quantization,
        start_layer=start,
        end_layer=end,
        state=state,
        is_tail=False,
        bytes_done=bytes_done,
        digest=digest,
    )


def heartbeat(
    *shards: ShardReport, directive_epoch: int = 0, sessions: int = 0, leaving: bool = False
) -> Heartbeat:
    return Heartbeat(
        shards=shards,
        sessions=sessions,
        kv_bytes_free=10_000,
        directive_epoch=directive_epoch,
        leaving=leaving,
    )


def load(worker_id: str, start: int, end: int, model: VariantKey = MODEL) -> RebalanceDirective:
    return RebalanceDirective(
        worker_id=WorkerId(worker_id),
        kind=DirectiveKind.LOAD_SHARD,
        variant=model,
        shard_range=ShardRange(start, end),
        reason=DirectiveReason.GAP,
    )


def drop(worker_id: str, start: int, end: int, model: VariantKey = MODEL) -> RebalanceDirective:
    return RebalanceDirective(
        worker_id=WorkerId(worker_id),
        kind=DirectiveKind.DROP_SHARD,
        variant=model,
        shard_range=ShardRange(start, end),
        reason=DirectiveReason.REDUNDANCY,
    )
