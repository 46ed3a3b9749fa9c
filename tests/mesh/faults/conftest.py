"""One reused Mesh for each module of fault tests."""

from collections.abc import Iterator

import pytest

from tests.mesh.faults.fault_mesh import FaultMesh, fault_mesh


@pytest.fixture(scope="module")
def fault_free_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultMesh]:
    """Two Head Workers, two in the middle and two Tail Workers, all well."""
    with fault_mesh(tmp_path_factory.mktemp("faults")) as mesh:
        yield mesh
