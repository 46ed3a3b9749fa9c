import pytest

from meshnet_common.openai.errors import (
    ApiError,
    model_not_found,
    model_unavailable,
    upstream_failed,
)
from meshnet_gateway.routing import join_findings

UNKNOWN = model_not_found("m")
UNCOVERED = model_unavailable("Layers [0, 3) are missing.", 5)
SILENT = upstream_failed("No Mesh answers.")


def test_head_workers_of_all_meshes_are_joined_each_once() -> None:
    assert join_findings([("a", "b"), UNKNOWN, ("b", "c"), SILENT]) == ("a", "b", "c")


@pytest.mark.parametrize(
    ("findings", "raised"),
    [
        ([UNKNOWN, UNCOVERED, SILENT], UNCOVERED),
        ([SILENT, UNKNOWN], UNKNOWN),
        ([SILENT], SILENT),
    ],
)
def test_the_most_telling_refusal_is_raised(findings: list[ApiError], raised: ApiError) -> None:
    with pytest.raises(ApiError) as caught:
        join_findings(findings)

    assert caught.value is raised
