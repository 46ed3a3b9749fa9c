"""Clients that people have, unmodified and each in its own environment, against a running Mesh."""

from collections.abc import Callable, Iterator

import pytest

from demo.local_mesh import LocalMesh
from tests.clients.environments import NodeMissingError
from tests.clients.matrix import CLIENTS, Client, ClientMesh, client_mesh, raw_held_stream


@pytest.fixture(scope="module")
def mesh(new_mesh: Callable[[], LocalMesh]) -> Iterator[LocalMesh]:
    mesh = new_mesh()
    yield mesh
    mesh.programs.stop_all()


@pytest.fixture(scope="module")
def running(mesh: LocalMesh) -> Iterator[ClientMesh]:
    with client_mesh(mesh) as running:
        yield running


def test_the_stream_that_every_client_reads_has_comments_before_and_within(
    running: ClientMesh,
) -> None:
    lines = raw_held_stream(running.facts)
    assert lines[0].startswith(": accepted")
    events = [number for number, line in enumerate(lines) if line.startswith("data:")]
    assert ": keep-alive" in lines[events[0] : events[-1]]


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.label)
def test_a_client_gets_what_it_asks_for(running: ClientMesh, client: Client) -> None:
    try:
        lines = running.run(client)
    except NodeMissingError as error:
        pytest.skip(str(error.__doc__))
    assert [line for line in lines if line.outcome == "failed" and not line.may_fail] == []
    assert any(line.outcome == "passed" for line in lines)
