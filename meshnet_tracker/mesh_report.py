"""What the `workers` and `coverage` commands do: read the database, tell it in lines."""

from collections.abc import Sequence

from meshnet_common.ids import WorkerId
from meshnet_tracker.answers import WorkerSummary, summarize_workers
from meshnet_tracker.models import Catalogue
from meshnet_tracker.opening import open_store
from meshnet_tracker.overview import VariantCoverage, describe_coverage
from meshnet_tracker.store.store import Store
from meshnet_tracker.tables import duration, json_lines, size, table

WORKER_COLUMNS = ("worker", "state", "layers", "layers/s", "sessions", "free KV", "seen", "region")


async def show_workers(database: str, *, as_json: bool) -> list[str]:
    """Tell of all Workers, the lost ones included."""
    async with open_store(database) as store:
        now = await store.clock.now()
        summaries = summarize_workers(await store.workers(), now)
        drained = await store.drains.all()
    if as_json:
        return json_lines(summaries)
    if not summaries.workers:
        return ["No workers. Start one with `meshnet-worker start --tracker URL`."]
    rows = [
        _worker_row(worker, is_drained=WorkerId(worker.worker_id) in drained)
        for worker in summaries.workers
    ]
    return table(WORKER_COLUMNS, rows)


async def show_coverage(database: str, model: str | None, *, as_json: bool) -> list[str]:
    """Tell who well each Variant is served, or one of them; raises UnknownModelError."""
    async with open_store(database) as store:
        described = await _coverage(store, model)
    if as_json:
        return json_lines({"variants": described})
    if not described:
        return ["No models. Add one with `meshnet-tracker preset add DIR|REPO`."]
    return [line for variant in described for line in _coverage_lines(variant)]


async def _coverage(store: Store, model: str | None) -> Sequence[VariantCoverage]:
    names = await store.aliases.book()
    snapshot = (await store.load_snapshot()).snapshot
    described = describe_coverage(snapshot, names)
    if model is None:
        return described
    wanted = Catalogue(snapshot.presets, names).find(model).name
    return [variant for variant in described if variant.own_name == wanted]


def _worker_row(worker: WorkerSummary, *, is_drained: bool) -> tuple[str, ...]:
    layers = ", ".join(
        f"{shard.model} {shard.quantization} [{shard.start_layer}, {shard.end_layer})"
        + ("" if shard.state == "ready" else f" {shard.state}")
        for shard in worker.shards
    )
    speed = worker.decode_tokens_per_sec_per_layer or worker.benchmark_tokens_per_sec
    return (
        worker.worker_id,
        worker.state + (" (to be drained)" if is_drained else ""),
        layers or "-",
        f"{speed:.0f}",
        str(worker.sessions),
        size(worker.kv_bytes_free),
        f"{duration(worker.seconds_since_heartbeat)} ago",
        worker.region or "-",
    )


def _coverage_lines(variant: VariantCoverage) -> list[str]:
    names = ", ".join(variant.names) or "nobody's name yet"
    state = "served" if variant.is_servable else f"{variant.missing_layers} layers missing"
    return [
        f"{variant.own_name}: {state}, thinnest layer {variant.thinnest_replicas}x"
        f"{', canary' if variant.is_canary else ''}; answers to {names}",
        *(
            f"  [{row.start_layer}, {row.end_layer})  "
            + (f"{row.worker_count}x" if row.worker_count else "GAP")
            for row in variant.coverage
        ),
    ]
