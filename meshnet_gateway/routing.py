"""Decides what a client hears when no Mesh has a Head Worker; values in, values out."""

from collections.abc import Sequence

from meshnet_common.openai.errors import ApiError, upstream_failed


def join_findings(findings: Sequence[tuple[str, ...] | ApiError]) -> tuple[str, ...]:
    """Join what all meshes said of one model; raises the most telling refusal if none has it.

    A Mesh that knows the model but lacks Layers (503) tells more than one that does not know it
    (404), and that more than one that cannot be reached.
    """
    heads = dict.fromkeys(
        head for found in findings if not isinstance(found, ApiError) for head in found
    )
    if heads:
        return tuple(heads)
    refusals = [found for found in findings if isinstance(found, ApiError)]
    raise min(refusals, key=_telling, default=upstream_failed("There is no Mesh to ask."))


def _telling(refusal: ApiError) -> int:
    order = (503, 404)
    return order.index(refusal.status) if refusal.status in order else len(order)
