"""What can go wrong with a Worker, and how it is made good again."""

from enum import StrEnum
from typing import assert_never

from tests.mesh.faults.fault_mesh import FaultMesh, FaultWorker


class Fault(StrEnum):
    """One kind of harm."""

    KILL = "kill"
    """Daemon and engine are killed; somebody starts them again afterwards."""
    KILL_ENGINE = "kill engine"
    FREEZE = "freeze"
    """Both stand still, and go on when the answer does, or when it has ended."""
    LOSE_NETWORK = "lose network"
    """Nothing passes, until the answer goes on or has ended; then it comes late."""
    CUT_LINKS = "cut links"
    DROP = "drop"
    """A directive to drop the Shard."""
    RESTART = "restart"
    """Killed, and at once started again with nothing loaded."""


def inflict(mesh: FaultMesh, fault: Fault, worker: FaultWorker) -> None:
    """Do the harm."""
    match fault:
        case Fault.KILL:
            mesh.kill(worker)
        case Fault.KILL_ENGINE:
            mesh.kill_engine(worker)
        case Fault.FREEZE:
            mesh.freeze(worker)
        case Fault.LOSE_NETWORK:
            mesh.lose_network(worker)
        case Fault.CUT_LINKS:
            mesh.cut_links(worker)
        case Fault.DROP:
            mesh.order_drop(worker)
        case Fault.RESTART:
            mesh.kill(worker)
            mesh.revive(worker)
        case _:
            assert_never(fault)


def undo(mesh: FaultMesh, fault: Fault, worker: FaultWorker) -> None:
    """Let the Worker get well again; some faults pass by themselves."""
    match fault:
        case Fault.KILL:
            mesh.revive(worker)
        case Fault.FREEZE:
            mesh.thaw(worker)
        case Fault.LOSE_NETWORK:
            mesh.find_network(worker)
        case Fault.DROP:
            mesh.wait_until_dropped()
        case _:
            pass
