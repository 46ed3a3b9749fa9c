"""What a knee means for those that share the Endpoint's GPUs."""

from collections.abc import Iterator

from meshnet_gateway.config.settings import Endpoint, Kind, Settings


def advise_on_sharing(settings: Settings, gpu_group: str, knee: int) -> Iterator[str]:
    """Say what stands in the way of this budget, and whether the GPU Group is shared well."""
    members = list(_members(settings, gpu_group))
    floors = sum(endpoint.floor for _, endpoint in members)
    if floors > knee:
        yield (
            f"The Floors in the GPU Group `{gpu_group}` are {floors} in all, which is above this "
            "budget: lower parallel_instances or max_parallel_calls first."
        )
    urls = {endpoint.base_url for _, endpoint in members}
    if len(urls) > 1:
        yield f"The budget counts the requests of all {len(urls)} Endpoints of the GPU Group."
    if {kind for kind, _ in members} == {"chat", "embedding"}:
        yield (
            "Chat and embeddings share these GPUs, and only a budget guards the chat. If you have "
            "several GPUs, let chat have the strongest for itself and give embeddings a cheaper "
            "one with a gpu_group of its own; if not, they may run on the CPU or elsewhere."
        )


def _members(settings: Settings, gpu_group: str) -> Iterator[tuple[Kind, Endpoint]]:
    for model in settings.models:
        for endpoint in model.all_endpoints:
            if endpoint.gpu_group == gpu_group:
                yield model.kind, endpoint
