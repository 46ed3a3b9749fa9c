"""Starting work in a TaskGroup that may be ending."""

import asyncio
from collections.abc import Coroutine
from typing import Any


def start_task(tasks: asyncio.TaskGroup, work: Coroutine[Any, Any, None]) -> None:
    """Start work, unless the Worker is stopping: then nobody needs to be told of anything."""
    try:
        tasks.create_task(work)
    except RuntimeError:
        work.close()
