"""A minute of chaos: every answer is exact, nobody hangs, and nothing is left behind."""

import os

from tests.mesh.faults.asking import Asking
from tests.mesh.faults.chaos import Chaos, ChaosReport, chaos_asks, growth
from tests.mesh.faults.fault_mesh import FaultMesh

SEED = int(os.environ.get("FAULT_SEED", "4"))
SECONDS = 60.0


def test_a_minute_of_chaos_leaves_every_answer_exact(sound_mesh: FaultMesh) -> None:
    sound_mesh.wait_until_whole()
    expected = {
        ask: Asking(sound_mesh.mesh.tracker_url, ask).start().result() for ask in chaos_asks()
    }
    report = Chaos(sound_mesh, expected, SEED).run(SECONDS)
    assert report.counts["exact"] > 0
    assert report.faults.total() > 0
    assert report.is_well, report.complaints
    assert report.counts["clean_errors"] == 0, report.complaints


def test_growth_is_the_end_over_the_warm_beginning() -> None:
    assert growth([1, 1, 100, 90, 50, 60, 110, 100]) == 1.1
    assert growth([]) == 1.0


def test_a_run_whose_memory_grows_or_that_leaves_something_behind_is_not_well() -> None:
    flat, steep = [100.0] * 8, [100.0, 100.0, 100.0, 100.0, 100.0, 100.0, 160.0, 160.0]
    well = ChaosReport(1, tracker_mib=flat, worker_mib=flat)
    assert well.is_well
    assert not ChaosReport(1, tracker_mib=flat, worker_mib=steep).is_well
    assert not ChaosReport(1, tracker_mib=steep, worker_mib=flat).is_well
    assert not ChaosReport(1, leaked=1).is_well
