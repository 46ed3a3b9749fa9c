"""The process that plans: a Tracker starts it and asks it for passes.

It reads the database itself and writes nothing there. Lines come on stdin, answers go to stdout.
It ends as soon as its Tracker does, however that ended, since its stdin ends with it.
"""

import asyncio
import os
import queue
import signal
import sys
import threading

import structlog

from meshnet_common.edge.logs import configure_logging
from meshnet_tracker.planner_messages import (
    DatabaseAway,
    Opening,
    PassFailed,
    PlanAnswer,
    PlanRequest,
    decode_opening,
    decode_request,
    encode_line,
)
from meshnet_tracker.planning_pass import PlanningPasses
from meshnet_tracker.store.errors import StoreError
from meshnet_tracker.store.store import Store

LESS_URGENT = 5
"""Added to the process's niceness: answering requests comes first."""

_logger = structlog.get_logger()


def main() -> None:
    """Plan until stdin ends."""
    # Ctrl-C is the Tracker's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(LESS_URGENT)
    configure_logging("warning")
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    # A thread of its own sees the end of stdin also in the middle of a pass.
    threading.Thread(target=_read_lines, args=(lines,), daemon=True).start()
    asyncio.run(_answer_all(lines))


def _read_lines(lines: "queue.SimpleQueue[bytes]") -> None:
    for line in sys.stdin.buffer:
        lines.put(line)
    os._exit(0)


async def _answer_all(lines: "queue.SimpleQueue[bytes]") -> None:
    opening: Opening = decode_opening(await asyncio.to_thread(lines.get))
    passes = PlanningPasses(Store.open(opening.database))
    while True:
        request = decode_request(await asyncio.to_thread(lines.get))
        sys.stdout.buffer.write(encode_line(await _answer(passes, request)))
        sys.stdout.buffer.flush()


async def _answer(passes: PlanningPasses, request: PlanRequest) -> PlanAnswer:
    try:
        return await passes.plan(request.policy, request.now)
    except StoreError as error:
        return DatabaseAway(str(error))
    except Exception as error:
        # The next pass may well succeed; nothing is kept from one to the other.
        _logger.exception("planning failed")
        return PassFailed(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
