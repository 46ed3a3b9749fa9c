"""The planning loop: load a snapshot, let the planner decide, issue what it decided.

The planner is pure and lives in `planning`; here is only when it runs (every 30 s and at every
change, at most once a second) and what happens with its answer. It runs in a thread, so that a
long pass does not hold up requests.
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from meshnet_tracker.planning.rebalance import plan_rebalance
from meshnet_tracker.planning.snapshot import (
    MeshSnapshot,
    PlannerPolicy,
    RebalanceDirective,
)
from meshnet_tracker.services import Services
from meshnet_tracker.store.errors import DatabaseUnavailableError, StaleSnapshotError

PASS_PAUSE_SECONDS = 1.0

Planner = Callable[[MeshSnapshot, PlannerPolicy, float], Sequence[RebalanceDirective]]

_logger = structlog.get_logger()


class Reconciler:
    """Runs planning passes until it is cancelled."""

    def __init__(self, services: Services, plan: Planner = plan_rebalance) -> None:
        self._services = services
        self._plan = plan

    async def run(self) -> None:
        """Plan at once, and then at every ring and every `rebalance_seconds`."""
        while True:
            await self._safe_pass()
            await asyncio.sleep(PASS_PAUSE_SECONDS)
            await self._services.rebalance.wait(self._services.settings.rebalance_seconds)

    async def reconcile_once(self) -> None:
        """Plan one pass and issue it; raises StaleSnapshotError if another one came first."""
        services = self._services
        loaded = await services.store.load_snapshot()
        now = services.clock.now()
        policy = services.settings.policy
        planned = await asyncio.to_thread(self._plan, loaded.snapshot, policy, now)
        if not planned:
            return
        deadline_seconds = policy.load_deadline_seconds
        issued = await services.store.issue_directives(planned, loaded.epoch, deadline_seconds, now)
        # A DROP_SHARD counts from the moment it is issued: no new Route may use its Layers.
        services.view.forget()
        services.directives.ring(directive.worker_id for directive in issued)
        for directive in issued:
            _logger.info(
                "directive issued",
                worker=directive.worker_id,
                kind=directive.kind,
                model=directive.variant.model,
                quantization=directive.variant.quantization,
                layers=directive.shard_range,
                reason=directive.reason,
            )

    async def _safe_pass(self) -> None:
        try:
            await self.reconcile_once()
        except StaleSnapshotError:
            self._services.rebalance.ring()
        except DatabaseUnavailableError as error:
            _logger.warning("planning pass put off", reason=str(error))
        except Exception:
            # Whatever is wrong with planning, Routes over what is loaded must go on.
            _logger.exception("planning pass failed")
