"""The planning loop: ask for a plan, issue what it decided.

The planner is pure and runs in a process of its own; here is only when it runs (every 30 s and at
every change, at most once a second, and only on the Tracker whose turn it is) and what happens with
its answer.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from meshnet_tracker.planner_link import PlannerError
from meshnet_tracker.planner_messages import Planned
from meshnet_tracker.planning.snapshot import PlannerPolicy, RebalanceDirective
from meshnet_tracker.services import Services
from meshnet_tracker.store.errors import (
    DatabaseUnavailableError,
    StaleSnapshotError,
    StaleTermError,
)

PASS_PAUSE_SECONDS = 1.0

PlanPass = Callable[[PlannerPolicy, float], Awaitable[Planned]]

_logger = structlog.get_logger()


class Reconciler:
    """Runs planning passes until it is cancelled."""

    def __init__(self, services: Services, plan: PlanPass) -> None:
        self._services = services
        self._plan = plan

    async def run(self) -> None:
        """Plan at once, and then at every ring and every `rebalance_seconds`."""
        while True:
            await self._safe_pass()
            await asyncio.sleep(PASS_PAUSE_SECONDS)
            await self._services.rebalance.wait(self._services.settings.rebalance_seconds)

    async def reconcile_once(self) -> None:
        """Plan one pass and issue it, if it is this Tracker's turn.

        Raises StaleSnapshotError if another pass came first, StaleTermError if another Tracker
        plans now, PlannerError and DatabaseUnavailableError.
        """
        services = self._services
        term = services.turn.term
        if term is None or services.frozen.is_set():
            return
        policy = services.settings.policy
        with services.metrics.planning_seconds.time():
            planned = await self._plan(policy, services.clock.now())
        services.turn.note_pass(succeeded=True)
        if not planned.directives or services.frozen.is_set():
            return
        issued = await services.store.issue_directives(
            planned.directives,
            planned.issued_plans,
            policy.load_deadline_seconds,
            services.clock.now(),
            term,
        )
        # A DROP_SHARD counts from the moment it is issued: no new Route may use its Layers.
        services.view.forget()
        services.directives.ring(directive.worker_id for directive in issued)
        for directive in issued:
            _log_issued(directive)

    async def _safe_pass(self) -> None:
        try:
            await self.reconcile_once()
        except StaleSnapshotError:
            self._services.rebalance.ring()
        except StaleTermError as error:
            _logger.warning("another tracker plans", reason=str(error))
        except DatabaseUnavailableError as error:
            _logger.warning("planning pass put off", reason=str(error))
        except PlannerError as error:
            self._note_failure()
            _logger.warning("planning pass failed", reason=str(error))
            self._services.rebalance.ring()
        except Exception:
            self._note_failure()
            # Whatever is wrong with planning, Routes over what is loaded must go on.
            _logger.exception("planning pass failed")

    def _note_failure(self) -> None:
        self._services.metrics.planning_failures.inc()
        self._services.turn.note_pass(succeeded=False)


def _log_issued(directive: RebalanceDirective) -> None:
    _logger.info(
        "directive issued",
        worker=directive.worker_id,
        kind=directive.kind,
        model=directive.variant.model,
        quantization=directive.variant.quantization,
        layers=directive.shard_range,
        reason=directive.reason,
        why=directive.why,
    )
