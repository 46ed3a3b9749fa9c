"""The header that names the meshes whose Gateways a request came through, nearest last."""

from meshnet_common.openai.errors import DO_NOT_RETRY, SERVER_ERROR, ApiError, ErrorBody

VIA_HEADER = "x-meshnet-via"
MAX_PASSES = 2


def read_via(header: str | None) -> tuple[str, ...]:
    """Return the ids of these meshes; none for a client's own request."""
    return tuple(mesh.strip() for mesh in (header or "").split(",") if mesh.strip())


def write_via(via: tuple[str, ...], mesh_id: str) -> str:
    """Write the header for a Peer: this Mesh comes last."""
    return ", ".join((*via, mesh_id))


def check_via(via: tuple[str, ...], mesh_id: str) -> None:
    """Refuse a request that was here before; raises ApiError."""
    if mesh_id in via:
        raise federation_loop(f"This request came back to the Mesh `{mesh_id}`.", via)


def federation_loop(message: str, via: tuple[str, ...]) -> ApiError:
    """Refuse a request that finds no Mesh which has not passed it on already."""
    way = f" It came through {', '.join(via)}." if via else ""
    body = ErrorBody(f"{message}{way}"[:500], SERVER_ERROR, None, "federation_loop")
    return ApiError(508, body, DO_NOT_RETRY)
