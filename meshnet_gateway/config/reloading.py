"""Decides what a reload changes, so that all else goes on as it is: counts, queues and streams."""

from collections.abc import Mapping

import msgspec

from meshnet_gateway.config.settings import Endpoint, Settings


class EndpointKey(msgspec.Struct, frozen=True, order=True):
    """What stays the same of an Endpoint however its figures are changed."""

    model: str
    base_url: str

    def __str__(self) -> str:
        return f"{self.model} at {self.base_url}"


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between two Settings.

    One that joined takes requests at once. One that left gets no more, and finishes those that it
    has. One that was altered keeps its counts under new figures.
    """

    joined: tuple[EndpointKey, ...] = ()
    left: tuple[EndpointKey, ...] = ()
    altered: tuple[EndpointKey, ...] = ()
    budgets: Mapping[str, int | None] = {}
    """GPU Groups with another budget than before; None where there is none any more."""
    fields: tuple[str, ...] = ()
    """Fields of Settings that differ, those that are told above among them."""

    def __bool__(self) -> bool:
        return bool(self.fields)

    def facts(self) -> dict[str, str]:
        """Return what a line of the log tells: only what has changed."""
        told = {
            "fields": ", ".join(self.fields),
            "joined": ", ".join(map(str, self.joined)),
            "left": ", ".join(map(str, self.left)),
            "altered": ", ".join(map(str, self.altered)),
            "budgets": ", ".join(f"{name} {cap or 'none'}" for name, cap in self.budgets.items()),
        }
        return {name: text for name, text in told.items() if text}


def changes_between(old: Settings, new: Settings) -> Changes:
    """Compare the running Settings with those that were read anew."""
    before, after = _endpoints(old), _endpoints(new)
    in_both = before.keys() & after.keys()
    groups = old.budgets.keys() | new.budgets.keys()
    return Changes(
        joined=tuple(sorted(after.keys() - before.keys())),
        left=tuple(sorted(before.keys() - after.keys())),
        altered=tuple(sorted(key for key in in_both if before[key] != after[key])),
        budgets={
            group: new.budgets.get(group)
            for group in sorted(groups)
            if old.budgets.get(group) != new.budgets.get(group)
        },
        fields=tuple(
            name for name in Settings.__struct_fields__ if getattr(old, name) != getattr(new, name)
        ),
    )


def _endpoints(settings: Settings) -> dict[EndpointKey, Endpoint]:
    """A model's fallback counts as one of its Endpoints."""
    return {
        EndpointKey(model.id, endpoint.base_url): endpoint
        for model in settings.models
        for endpoint in model.all_endpoints
    }
