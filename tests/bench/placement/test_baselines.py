from bench.placement.baselines import balanced_ring, memory_ring, petals
from bench.placement.instances import load, replicas
from meshnet_common.ids import WorkerId
from tests.bench.placement.meshes import instance


def test_a_ring_by_memory_holds_every_layer_once_in_proportion() -> None:
    runs = memory_ring(load("single24"))
    assert sum(map(len, runs.values())) == 80
    assert len(runs[WorkerId("A100-0")]) > len(runs[WorkerId("L4-0")]) > len(runs[WorkerId("T4-0")])


def test_a_balanced_ring_gives_the_slower_worker_fewer_layers() -> None:
    mesh = instance(4, {"a": (90.0, 60.0, 45.0), "b": (50.0, 25.0, 17.0)})
    runs = balanced_ring(mesh)
    assert [len(runs[WorkerId(name)]) for name in "ab"] == [3, 1]


def test_a_petals_server_takes_the_weakest_window() -> None:
    mesh = instance(4, {"a": (10.0, 10.0), "b": (10.0, 10.0), "c": (10.0, 10.0)})
    runs = petals(mesh)
    assert replicas(mesh, runs) == 1
    assert {len(run) for run in runs.values()} == {2}
    assert {run.start for run in runs.values()} == {0, 2}
