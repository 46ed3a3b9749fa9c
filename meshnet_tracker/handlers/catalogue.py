"""What is served here: models, presets, Coverage Maps, Head Workers."""

from typing import Any

import msgspec
from aiohttp import web

from meshnet_common.edge.http import json_response
from meshnet_common.openai.responses import ListedModel, model_list, one_model
from meshnet_common.protocol.messages import CoverageRow, PresetAnswer
from meshnet_tracker.answers import admissible_tokens, head_workers
from meshnet_tracker.models import ServedModel, UnknownModelError, served_models
from meshnet_tracker.records import PresetRecord
from meshnet_tracker.services import Services
from meshnet_tracker.store.revisions import Weights

# A model's name may have slashes, sent as they are or encoded.
MODEL = "{model:.+}"


class CatalogueHandlers:
    """Reading what the Mesh knows of its models."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/models", self.list_models),
            web.get("/models", self.list_models),
            web.get("/canary/v1/models", self.list_canaries),
            web.get(f"/v1/models/{MODEL}", self.show_model),
            web.get(f"/models/{MODEL}", self.show_model),
            web.get(f"/v1/presets/{MODEL}", self.show_preset),
            web.get(f"/v1/coverage/{MODEL}", self.show_coverage),
            web.get(f"/v1/head-workers/{MODEL}", self.list_head_workers),
            web.get(f"/v1/tracker-nodes/{MODEL}", self.list_head_workers),
        ]

    async def list_models(self, request: web.Request) -> web.Response:
        key = await self._services.access.holder(request)
        names = await self._services.admissions.names.book()
        listed = [
            msgspec.structs.replace(shown, id=name)
            for model, shown in await self._servable()
            for name in names.listed_as(model)
            if key is None or key.allows(name)
        ]
        return json_response(model_list(listed))

    async def list_canaries(self, request: web.Request) -> web.Response:
        """List the models that take no requests but under `/canary`."""
        key = await self._services.access.holder(request)
        names = await self._services.admissions.names.book()
        servable = await self._servable()
        listed = [
            shown
            for model, shown in servable
            if names.is_canary(model) and (key is None or key.allows(shown.id))
        ]
        return json_response(model_list(listed))

    async def show_model(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        await self._services.access.check(request, name)
        model = await self._services.admissions.find_public_model(name)
        for record in await self._services.store.presets():
            coverage = await self._coverage(model) if record.preset == model.preset else ()
            if coverage and _is_servable(coverage):
                listed = await self._listed(model, record, coverage)
                return json_response(one_model(msgspec.structs.replace(listed, id=name)))
        raise UnknownModelError(name)

    async def show_preset(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        by_name = {
            record.preset.name: record.preset for record in await self._services.store.presets()
        }
        # A Worker means the preset, whatever an Alias makes of its name for clients.
        preset = by_name.get(name) or (await self._services.admissions.find_model(name)).preset
        manifest = await self._services.store.manifest(preset.name)
        preset = msgspec.structs.replace(preset, manifest=manifest)
        return json_response(msgspec.json.encode(PresetAnswer(preset=preset)))

    async def show_coverage(self, request: web.Request) -> web.Response:
        model = await self._services.admissions.find_model(request.match_info["model"])
        return json_response(msgspec.json.encode(await self._coverage(model)))

    async def list_head_workers(self, request: web.Request) -> web.Response:
        model = await self._services.admissions.find_model(request.match_info["model"])
        snapshot = await self._services.view.snapshot()
        return json_response(msgspec.json.encode(head_workers(snapshot.workers, model)))

    async def _servable(self) -> list[tuple[ServedModel, ListedModel]]:
        return [
            (model, await self._listed(model, record, coverage))
            for record in await self._services.store.presets()
            for model in served_models((record.preset,))
            if _is_servable(coverage := await self._coverage(model))
        ]

    async def _listed(
        self, model: ServedModel, record: PresetRecord, coverage: tuple[CoverageRow, ...]
    ) -> ListedModel:
        facts: dict[str, Any] = {
            "preset": model.preset.name,
            "quantization": model.variant.quantization,
            "layers": model.layer_count,
            "coverage": coverage,
        }
        return ListedModel(
            id=model.name,
            created=int(record.added_at),
            max_model_len=admissible_tokens(await self._services.view.snapshot(), model),
            meshnet=facts,
        )

    async def _coverage(self, model: ServedModel) -> tuple[CoverageRow, ...]:
        weights = Weights(model.variant.digest, model.layer_count)
        return await self._services.store.coverage(model.key, weights)


def _is_servable(coverage: tuple[CoverageRow, ...]) -> bool:
    return all(row.worker_count for row in coverage)
