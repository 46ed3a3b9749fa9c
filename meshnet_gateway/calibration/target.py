"""Decides which Endpoint a calibration measures."""

from typing import ClassVar

from meshnet_common.errors import MeshnetError
from meshnet_gateway.config.entries import Url
from meshnet_gateway.config.settings import Endpoint, Model, Settings


class NoTargetError(MeshnetError):
    """There is nothing to calibrate."""

    exit_status: ClassVar[int] = 3


def choose_target(
    settings: Settings, model_id: str, base_url: str | None
) -> tuple[Model, Endpoint]:
    """Return the model and its Endpoint at that URL, or its only one, or else its Mesh's.

    A Mesh is measured as a whole, through its Tracker. Raises NoTargetError.
    """
    model = settings.model(model_id) or settings.unnamed_model(model_id)
    endpoints = model.all_endpoints or tuple(map(model.found.at, settings.meshes))
    urls = ", ".join(endpoint.base_url for endpoint in endpoints)
    if base_url is not None:
        endpoints = tuple(one for one in endpoints if one.base_url == _spelled(base_url))
    match endpoints:
        case (endpoint,):
            return model, endpoint
        case ():
            raise NoTargetError(f"`{model_id}` has no such Endpoint. It has: {urls or 'none'}.")
        case _:
            raise NoTargetError(f"`{model_id}` has several, name one with --endpoint: {urls}.")


def _spelled(base_url: str) -> str:
    """Write a URL as the settings do; one that is none is nobody's."""
    try:
        return Url.parse(base_url).without_version
    except ValueError:
        return base_url
