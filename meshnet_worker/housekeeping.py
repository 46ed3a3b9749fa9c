"""What a Worker looks after from time to time: forgotten Sessions, its engine, its cores."""

import asyncio
from collections.abc import Callable

import structlog

from meshnet_worker.engine_port import Tune
from meshnet_worker.engine_supervisor import EngineSlot
from meshnet_worker.hops import Hops
from meshnet_worker.options import WorkerOptions
from meshnet_worker.slots import HostShare

SWEEP_SECONDS = 5.0
HANGING_SECONDS = 30.0
"""An engine that finishes no step for so long, and for what a slow Batch takes, is restarted."""

log = structlog.get_logger()


class Tuning:
    """How the engine is to work, as this host's cores and the Volunteer's options have it now."""

    def __init__(self, options: WorkerOptions, share: HostShare) -> None:
        self._options = options
        self._share = share

    def tune(self) -> Tune:
        threads = self._options.threads or self._share.threads()
        return Tune(threads, self._options.decode_groups, self._options.compiles)


class Housekeeper:
    """Goes through the house every few seconds."""

    def __init__(
        self,
        hops: Hops,
        slot: EngineSlot,
        tuning: Tuning,
        slow_batch_seconds: Callable[[], float],
    ) -> None:
        self._hops = hops
        self._slot = slot
        self._tuning = tuning
        self._slow_batch_seconds = slow_batch_seconds
        self._tune = tuning.tune()

    async def run(self) -> None:
        """Keep house until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.look()

    def look(self) -> None:
        """Free forgotten Sessions, give up an engine that hangs, share the cores anew."""
        self._hops.sweep()
        hanging_seconds = HANGING_SECONDS + self._slow_batch_seconds()
        if self._hops.engine_silence_seconds() > hanging_seconds:
            log.warning("engine hangs", silent_seconds=round(hanging_seconds))
            self._slot.abandon()
        tune = self._tuning.tune()
        if tune != self._tune:
            self._tune = tune
            log.info("cores shared anew", threads=tune.threads)
            self._slot.send(tune, b"")
