"""Fixtures of the mesh tests: a Mesh for each module, and its logs beside every failure."""

from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from demo.local_mesh import LocalMesh
from demo.model import embedder_folder, ensure_model
from demo.processes import Programs
from tests.mesh.small_models import gpt2_config, llama_config, save_random_model

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.mesh)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, LocalMesh):
                report.sections.append(("logs of the programs", value.programs.log_tails()))
    return report


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The real model's folder, which the demo shares."""
    return ensure_model()


@pytest.fixture(scope="session")
def minilm() -> Path:
    """A real embedder's folder."""
    return embedder_folder()


@pytest.fixture(scope="session")
def random_gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(gpt2_config(), tmp_path_factory.mktemp("models") / "gpt2")


@pytest.fixture(scope="session")
def random_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(llama_config(), tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="module")
def new_mesh(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[], LocalMesh]]:
    """Makes meshes whose programs all end with the module."""
    started: list[Programs] = []

    def make() -> LocalMesh:
        folder = tmp_path_factory.mktemp("mesh")
        started.append(Programs(folder))
        return LocalMesh(folder, started[-1])

    yield make
    for programs in started:
        programs.stop_all()
