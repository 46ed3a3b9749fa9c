"""What is served here: models, presets, Coverage Maps, Head Workers."""

from typing import Any

import msgspec
from aiohttp import web

from meshnet_common.edge.http import json_response
from meshnet_common.openai.responses import ListedModel, model_list, one_model
from meshnet_common.protocol.messages import CoverageRow, PresetAnswer
from meshnet_tracker.answers import head_workers
from meshnet_tracker.models import ServedModel, UnknownModelError, find_model, served_models
from meshnet_tracker.records import PresetRecord
from meshnet_tracker.services import Services

# A model's name may have slashes, sent as they are or encoded.
MODEL = "{model:.+}"


class CatalogueHandlers:
    """Reading what the Mesh knows of its models."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/models", self.list_models),
            web.get(f"/v1/models/{MODEL}", self.show_model),
            web.get(f"/v1/presets/{MODEL}", self.show_preset),
            web.get(f"/v1/coverage/{MODEL}", self.show_coverage),
            web.get(f"/v1/head-workers/{MODEL}", self.list_head_workers),
            web.get(f"/v1/tracker-nodes/{MODEL}", self.list_head_workers),
        ]

    async def list_models(self, request: web.Request) -> web.Response:
        del request
        listed = [
            _listed(model, record, coverage)
            for record in await self._services.store.presets()
            for model in served_models((record.preset,))
            if _is_servable(coverage := await self._coverage(model))
        ]
        return json_response(model_list(listed))

    async def show_model(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        for record in await self._services.store.presets():
            for model in served_models((record.preset,)):
                coverage = await self._coverage(model) if model.name == name else ()
                if coverage and _is_servable(coverage):
                    return json_response(one_model(_listed(model, record, coverage)))
        raise UnknownModelError(name)

    async def show_preset(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        presets = [record.preset for record in await self._services.store.presets()]
        by_name = {preset.name: preset for preset in presets}
        preset = by_name.get(name) or find_model(presets, name).preset
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

    async def _coverage(self, model: ServedModel) -> tuple[CoverageRow, ...]:
        return await self._services.store.coverage(model.key, model.layer_count)


def _is_servable(coverage: tuple[CoverageRow, ...]) -> bool:
    return all(row.worker_count for row in coverage)


def _listed(
    model: ServedModel, record: PresetRecord, coverage: tuple[CoverageRow, ...]
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
        max_model_len=model.preset.context_tokens,
        meshnet=facts,
    )
