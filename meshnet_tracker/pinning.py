"""What the `pin` and `drain` commands do: tell the planner what an Operator wants of Workers."""

from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.models import UnknownModelError, find_model
from meshnet_tracker.opening import open_store
from meshnet_tracker.overview import describe_pins
from meshnet_tracker.planning.snapshot import Pin
from meshnet_tracker.store.errors import PinError
from meshnet_tracker.store.store import Store
from meshnet_tracker.tables import json_lines, table


async def add_pin(database: str, worker: str, model: str, start: int, end: int) -> list[str]:
    """Pin a Worker to some Layers; raises PinError."""
    async with open_store(database) as store:
        presets = [record.preset for record in await store.presets()]
        try:
            found = find_model(presets, model)
            pin = Pin(WorkerId(worker), found.key, ShardRange(start, end))
        except UnknownModelError as error:
            advice = "`meshnet-tracker preset list` shows all models."
            raise PinError(f"No model is served under its own name {model}. {advice}") from error
        except ValueError as error:
            raise PinError("The first layer comes before the end, which is excluded.") from error
        await store.pins.set(pin, await store.clock.now())
        return [
            f"{worker} serves {model} {pin.shard_range} from now on.",
            *await _absent(store, pin),
        ]


async def remove_pin(database: str, worker: str) -> list[str]:
    """Let a Worker go; raises PinError if it is not pinned."""
    async with open_store(database) as store:
        if not await store.pins.remove(WorkerId(worker)):
            raise PinError(f"{worker} is not pinned. `meshnet-tracker pin list` shows who is.")
    return [f"{worker} is not pinned any more."]


async def list_pins(database: str, *, as_json: bool) -> list[str]:
    """Tell all pins."""
    async with open_store(database) as store:
        pins = describe_pins(await store.pins.all())
    if as_json:
        return json_lines({"pins": pins})
    if not pins:
        return ["No worker is pinned."]
    rows = [
        (pin.worker_id, pin.model, pin.quantization, f"[{pin.start_layer}, {pin.end_layer})")
        for pin in pins
    ]
    return table(("worker", "model", "quantization", "layers"), rows)


async def add_drain(database: str, worker: str) -> list[str]:
    """Have a Worker's Layers loaded elsewhere, and then dropped there; raises PinError."""
    async with open_store(database) as store:
        known = {record.worker_id for record in await store.workers()}
        if WorkerId(worker) not in known:
            raise PinError(f"There is no worker {worker}. `meshnet-tracker workers` shows all.")
        await store.drains.set(WorkerId(worker), await store.clock.now())
    return [
        f"{worker} is to be drained: it drops what it serves as soon as others serve it.",
        "`meshnet-tracker workers` shows when it holds nothing any more.",
    ]


async def remove_drain(database: str, worker: str) -> list[str]:
    """Let a Worker serve again; raises PinError if it was not to be drained."""
    async with open_store(database) as store:
        if not await store.drains.remove(WorkerId(worker)):
            raise PinError(f"{worker} is not to be drained.")
    return [f"{worker} serves again."]


async def list_drains(database: str, *, as_json: bool) -> list[str]:
    """Tell who is to be drained."""
    async with open_store(database) as store:
        drained = sorted(await store.drains.all())
    if as_json:
        return json_lines({"workers": drained})
    return list(drained) or ["No worker is to be drained."]


async def _absent(store: Store, pin: Pin) -> list[str]:
    known = {record.worker_id for record in await store.workers()}
    return [] if pin.worker_id in known else [f"No worker {pin.worker_id} has joined yet."]
