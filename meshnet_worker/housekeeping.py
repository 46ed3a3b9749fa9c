"""What a Worker looks after all the time: forgotten Sessions, those that wait, engine and cores."""

import asyncio
from itertools import count

import structlog

from meshnet_worker.engine_port import Tune
from meshnet_worker.engine_supervisor import EngineSlot
from meshnet_worker.hops import Hops
from meshnet_worker.measures import Measures
from meshnet_worker.options import WorkerOptions
from meshnet_worker.slots import HostShare

ROUND_SECONDS = 1.0
LATE_SECONDS = 1.0
"""A round that begins so much too late was held up by this Worker's own sleep."""
ROUNDS_OF_CORES = 5
"""Who else works on this host is looked up once in so many rounds."""
STALLED_SECONDS = 3.0
"""A Batch that takes so much longer than its size explains is a fault of this Worker."""
HANGING_SECONDS = 30.0
"""One that takes so much longer costs the engine its life: another is started."""
LAYER_SECONDS = 30.0
"""Loading one Layer may take so long at worst; no Batch runs meanwhile."""

log = structlog.get_logger()


class Tuning:
    """How the engine is to work, as this host's cores and the Volunteer's options have it now."""

    def __init__(self, options: WorkerOptions, share: HostShare) -> None:
        self._options = options
        self._share = share

    def tune(self) -> Tune:
        threads = self._options.threads or self._share.threads()
        return Tune(threads, self._options.decode_groups, self._options.compiles)


class Patience:
    """How long the engine may be silent while it has work, before that is a fault."""

    def __init__(self, measures: Measures, slot: EngineSlot) -> None:
        self._measures = measures
        self._slot = slot

    def seconds(self) -> float:
        """What a Batch may take here at worst, with a Layer that is loaded before it."""
        batch_seconds = self._measures.slow_batch_seconds()
        return batch_seconds + LAYER_SECONDS if self._slot.is_loading else batch_seconds


class Housekeeper:
    """Goes through the house every second."""

    def __init__(self, hops: Hops, slot: EngineSlot, tuning: Tuning) -> None:
        self._hops = hops
        self._slot = slot
        self._tuning = tuning
        self._tune = tuning.tune()

    async def run(self) -> None:
        """Keep house until cancelled."""
        loop = asyncio.get_running_loop()
        for number in count(1):
            due = loop.time() + ROUND_SECONDS
            await asyncio.sleep(ROUND_SECONDS)
            self.look_after_sessions()
            # Where it slept itself, what the engine said meanwhile is not read yet.
            if loop.time() < due + LATE_SECONDS:
                self.look_after_engine()
            if number % ROUNDS_OF_CORES == 0:
                self.share_cores()

    def look_after_sessions(self) -> None:
        """Free those whose lease is over, and give a sign of life of those that wait."""
        self._hops.sweep()
        self._hops.tell_who_waits()

    def look_after_engine(self) -> None:
        """Give up an engine that hangs."""
        overdue_seconds = self._hops.overdue_seconds()
        if overdue_seconds > HANGING_SECONDS:
            log.warning("engine hangs", overdue_seconds=round(overdue_seconds))
            self._slot.abandon()

    def share_cores(self) -> None:
        """Tell the engine when this host's cores are to be shared otherwise."""
        tune = self._tuning.tune()
        if tune != self._tune:
            self._tune = tune
            log.info("cores shared anew", threads=tune.threads)
            self._slot.send(tune, b"")
