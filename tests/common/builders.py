"""Values for tests: each builder takes what matters in a test and fills in the rest."""

from collections.abc import Sequence

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from meshnet_common.presets import ModelPreset, Variant
from meshnet_common.protocol.bodies import (
    ActivationFrame,
    ActivationsHeader,
    Epoch,
    Segment,
)
from meshnet_common.protocol.messages import RouteHop
from meshnet_common.protocol.tickets import RouteTicket, sign_ticket

NOW = 1_000_000.0
KEY_ID = "key-1"
HIDDEN_SIZE = 4


def variant(
    layers: int = 4,
    quantization: str = "float32",
    wire_dtype: str = "float32",
    kv_bytes_per_token_per_layer: int = 10,
) -> Variant:
    return Variant(
        quantization=quantization,
        digest=f"digest-of-{quantization}",
        layer_bytes=tuple(100 + layer for layer in range(layers)),
        embedding_bytes=50,
        head_bytes=70,
        kv_bytes_per_token_per_layer=kv_bytes_per_token_per_layer,
        wire_dtype=wire_dtype,
    )


def preset(
    *variants: Variant, name: str = "tiny", source: str = "tiny", hidden_size: int = HIDDEN_SIZE
) -> ModelPreset:
    variants = variants or (variant(),)
    return ModelPreset(
        name=name,
        source=source,
        architecture="LlamaForCausalLM",
        hidden_size=hidden_size,
        vocabulary_size=128,
        context_tokens=512,
        default_quantization=variants[0].quantization,
        variants=variants,
    )


def hop(worker_id: str, start: int, end: int, url: str = "http://127.0.0.1:1") -> RouteHop:
    return RouteHop(worker_id=worker_id, url=url, start=start, end=end)


def hops(*sizes: int) -> tuple[RouteHop, ...]:
    """Hops `w0`, `w1`, ... of so many Layers each."""
    ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
    return tuple(
        hop(f"w{place}", end - size, end)
        for place, (size, end) in enumerate(zip(sizes, ends, strict=True))
    )


def ticket(
    *route: RouteHop,
    session_id: str = "s1",
    incarnation: int = 1,
    admission_seq: int = 1,
    expires_at: float = NOW + 120,
    quantization: str = "float32",
    layer_count: int | None = None,
) -> RouteTicket:
    route = route or hops(2, 2)
    return RouteTicket(
        session_id=session_id,
        incarnation=incarnation,
        admission_seq=admission_seq,
        model="tiny",
        quantization=quantization,
        variant_digest=f"digest-of-{quantization}",
        layer_count=layer_count or route[-1].end,
        hops=route,
        seed=7,
        expires_at=expires_at,
    )


def signing_key(seed: int = 0) -> Ed25519PrivateKey:
    """The Tracker's key; another seed is a stranger's."""
    return Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)


def token_of(claims: RouteTicket, seed: int = 0, key_id: str = KEY_ID) -> str:
    return sign_ticket(claims, signing_key(seed), key_id)


def segment(
    start: int = 0,
    tokens: int = 1,
    session_id: str = "s1",
    epoch: Epoch = (1, 0),
    flags: int = 0,
    token_ids: Sequence[int] | None = None,
) -> Segment:
    ids = None if token_ids is None else tuple(token_ids)
    return Segment(session_id, epoch, start, tokens, flags, ids)


def activations(
    *segments: Segment, hidden_size: int = HIDDEN_SIZE, dtype: str = "float32"
) -> ActivationFrame:
    """Hidden states of zeros for these segments."""
    width = 4 if dtype == "float32" else 2
    positions = sum(run.tokens for run in segments)
    hidden = bytes(positions * hidden_size * width)
    return ActivationFrame(ActivationsHeader(segments, hidden_size, dtype), hidden)
