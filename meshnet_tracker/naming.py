"""What the `alias` commands do: cut over, roll back, tell what stands for what."""

from meshnet_tracker.models import UnknownModelError, find_model, unavailable
from meshnet_tracker.opening import open_store
from meshnet_tracker.overview import coverage_maps, describe_aliases
from meshnet_tracker.store.errors import AliasError
from meshnet_tracker.store.store import Store
from meshnet_tracker.tables import json_lines, table


async def set_alias(database: str, name: str, target: str, *, force: bool) -> list[str]:
    """Cut over; raises AliasError, also while Layers of the target are missing unless forced."""
    async with open_store(database) as store:
        if not force:
            await _check_servable(store, target)
        alias = await store.aliases.set(name, target, await store.clock.now())
    before = f" Before: {alias.prior}." if alias.prior else ""
    return [f"{alias.name} is answered by {alias.target} from now on.{before}"]


async def roll_back_alias(database: str, name: str) -> list[str]:
    """Go back to what a name stood for before; raises AliasError."""
    async with open_store(database) as store:
        alias = await store.aliases.roll_back(name, await store.clock.now())
    return [f"{alias.name} is answered by {alias.target} again. Before: {alias.prior}."]


async def remove_alias(database: str, name: str) -> list[str]:
    """Forget an Alias; raises AliasError."""
    async with open_store(database) as store:
        await store.aliases.remove(name)
    return [f"Removed the alias {name}."]


async def list_aliases(database: str, *, as_json: bool) -> list[str]:
    """Tell all Aliases."""
    async with open_store(database) as store:
        aliases = describe_aliases(await store.aliases.all())
    if as_json:
        return json_lines({"aliases": aliases})
    if not aliases:
        return ["No aliases. Make one with `meshnet-tracker alias set NAME MODEL`."]
    rows = [(alias.name, alias.target, alias.prior or "-") for alias in aliases]
    return table(("name", "answered by", "before"), rows)


async def _check_servable(store: Store, target: str) -> None:
    snapshot = (await store.load_snapshot()).snapshot
    try:
        model = find_model(snapshot.presets, target)
    except UnknownModelError as error:
        advice = "`meshnet-tracker preset list` shows all models."
        raise AliasError(f"No model is served under its own name {target}. {advice}") from error
    coverage = dict(coverage_maps(snapshot))[model.key]
    if not coverage.servable:
        said = unavailable(model, coverage.gaps()).detail
        raise AliasError(f"{said} With --force it is set all the same.")
