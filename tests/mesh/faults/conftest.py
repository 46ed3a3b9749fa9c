"""One Mesh for all fault tests: they leave it as well as they found it."""

from collections.abc import Iterator

import pytest

from tests.mesh.faults.fault_mesh import FaultMesh, fault_mesh


@pytest.fixture(scope="package")
def sound_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultMesh]:
    """Two Head Workers, two in the middle and two Tail Workers, all well at first."""
    with fault_mesh(tmp_path_factory.mktemp("faults")) as mesh:
        yield mesh
