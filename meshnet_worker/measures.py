"""What a Worker knows of itself: its device, its speeds, what it serves; and how it tells them."""

import importlib.metadata
from dataclasses import dataclass

import structlog

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import Capabilities, Heartbeat, RegisterWorker, RoundTrip
from meshnet_worker.engine_port import DeviceProbed, LayersMeasured
from meshnet_worker.kv_budget import KvBudget
from meshnet_worker.options import WorkerOptions, budget_bytes
from meshnet_worker.sessions import SessionTable
from meshnet_worker.shards import ShardTable
from meshnet_worker.speeds import Speeds

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Held:
    """What a Worker holds: Shards, Sessions, and the memory that it lends them."""

    shards: ShardTable
    sessions: SessionTable
    kv: KvBudget


@dataclass(frozen=True, slots=True)
class Place:
    """Where a Worker is found, and what its device can do."""

    url: str
    probed: DeviceProbed


@dataclass(frozen=True, slots=True)
class Seen:
    """What other rooms of a Worker know at a moment."""

    queued: int = 0
    """Answers that wait here for room."""
    round_trips: tuple[RoundTrip, ...] = ()


NOTHING_SEEN = Seen()


class Measures:
    """Measures of one Worker, and what its Tracker hears of them."""

    def __init__(self, options: WorkerOptions, worker_id: WorkerId, held: Held) -> None:
        self.speeds = Speeds()
        self.place: Place | None = None
        self._options = options
        self._worker_id = worker_id
        self._held = held

    def on_probed(self, probed: DeviceProbed) -> None:
        """Lend what the Volunteer chose of a device that was just measured."""
        is_cpu = probed.device == "cpu"
        size = budget_bytes(self._options.vram, probed.free_bytes, is_cpu=is_cpu)
        self._held.kv.budget_bytes = size
        self._held.kv.block_positions = probed.block_positions
        self._held.kv.scratch_blocks = probed.scratch_blocks
        log.info(
            "device",
            device=probed.device,
            name=probed.name,
            free_bytes=probed.free_bytes,
            budget_bytes=size,
            layer_tokens_per_second=round(probed.tokens_per_second, 1),
            prefill_tokens_per_second=round(probed.prefill_tokens_per_second, 1),
            memory_bytes_per_second=round(probed.memory_bytes_per_second),
            benchmark_seconds=round(probed.seconds, 2),
        )

    def on_measured(self, measured: LayersMeasured) -> bool:
        """Keep how fast loaded Layers run; returns whether that is news."""
        shards = self._held.shards
        shard = next((one for one in shards if one.number == measured.shard), None)
        if shard is None or not measured.decode_tokens_per_second:
            return False
        speeds = self.speeds
        speeds.decode_tokens_per_second_per_layer = measured.decode_tokens_per_second
        speeds.prefill_tokens_per_second_per_layer = measured.prefill_tokens_per_second
        speeds.speeds_of = shard.preset.public_name(shard.variant.quantization)
        log.info(
            "layers measured",
            model=speeds.speeds_of,
            layer_tokens_per_second=round(measured.decode_tokens_per_second, 1),
            prefill_tokens_per_second=round(measured.prefill_tokens_per_second, 1),
        )
        return True

    def slow_batch_seconds(self) -> float:
        """What a large Batch may take here at worst."""
        shards = self._held.shards
        layers = max((len(shard.ready) for shard in shards if shard.ready), default=0)
        return self.speeds.slow_batch_seconds(layers)

    def registration(self) -> RegisterWorker:
        """Say who this Worker is and what it offers."""
        assert self.place is not None
        probed = self.place.probed
        return RegisterWorker(
            worker_id=self._worker_id,
            url=self.place.url,
            version=importlib.metadata.version("meshnet"),
            capabilities=Capabilities(
                vram_bytes=self._held.kv.budget_bytes,
                quantizations=probed.quantizations,
                benchmark_tokens_per_sec=probed.tokens_per_second,
                benchmark_model=probed.benchmark_model,
                device=probed.name,
                starts_at_zero=self._options.tracker_mode,
                decode_tokens_per_sec_per_layer=probed.tokens_per_second,
                prefill_tokens_per_sec_per_layer=probed.prefill_tokens_per_second,
                memory_bytes_per_sec=probed.memory_bytes_per_second,
                link_bytes_per_sec=self.speeds.link_bytes_per_second,
                region=self._options.region,
            ),
        )

    def heartbeat(self, epoch: int, seen: Seen = NOTHING_SEEN) -> Heartbeat:
        """Say what this Worker serves now, and how loaded it is."""
        return Heartbeat(
            shards=self._held.shards.reports(),
            sessions=len(self._held.sessions),
            kv_bytes_free=self._held.kv.free_bytes,
            directive_epoch=epoch,
            decode_tokens_per_sec_per_layer=self.speeds.decode_tokens_per_second_per_layer,
            prefill_tokens_per_sec_per_layer=self.speeds.prefill_tokens_per_second_per_layer,
            speeds_of=self.speeds.speeds_of,
            link_bytes_per_sec=self.speeds.link_bytes_per_second,
            leaving=self._held.shards.leaving,
            queued=seen.queued,
            download_bytes_per_sec=self.speeds.download_bytes_per_second,
            round_trips=seen.round_trips,
        )
