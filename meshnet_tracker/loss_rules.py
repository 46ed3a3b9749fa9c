"""When silence means that Workers are lost, and when it says more about ourselves."""

MASS_SHARE = 0.2
LEAST_MASS = 5
WITNESSES = 3
"""So many others are asked when a Worker does not answer."""

LEAST_WITNESSES = 2
PATIENT_LEASES = 2.0
"""So many times the allowed silence nobody is lost, after this Tracker begins to plan."""


def is_mass_loss(late: int, live: int) -> bool:
    """Tell whether so many fell silent at once that rather the network did; `live` counts all."""
    return late >= LEAST_MASS and late > MASS_SHARE * live


def is_cut_off(asked: int, silent: int) -> bool:
    """Tell whether so many others do not answer either that rather this Tracker is cut off."""
    return asked >= LEAST_WITNESSES and silent == asked


def patience_seconds(lost_after_seconds: float) -> float:
    """Say for how long nobody is lost once the database is back or another Tracker plans.

    Workers could not send a heartbeat meanwhile, and have to find out where to send the next one.
    """
    return PATIENT_LEASES * lost_after_seconds
