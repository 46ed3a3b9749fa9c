"""The engine process: `python -m meshnet_worker.engine.main FD DEVICE`, started by the daemon only.

It ends when the daemon's end of the socket pair closes. What it computes with is imported after
it has become a process that Ctrl-C does not reach.
"""

import os
import signal
import socket
import sys
from types import FrameType
from typing import TYPE_CHECKING

from platformdirs import user_cache_path

from meshnet_common.edge.importing import lasting_imports
from meshnet_worker.engine.transformers_index import remember_index

if TYPE_CHECKING:
    from meshnet_worker.engine.serving import Engine


def main(descriptor: int, device: str) -> None:
    """Serve the daemon at the other end of an inherited socket."""
    # Ctrl-C reaches the whole process group; the daemon decides when its engine ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    engine = make_engine(socket.socket(fileno=descriptor), device)
    signal.signal(signal.SIGTERM, _exit_on_signal)
    try:
        engine.serve()
    except (BrokenPipeError, SystemExit):
        pass
    finally:
        engine.end()
    # Nothing is left to do, and giving gigabytes back one by one takes a while.
    os._exit(0)


def make_engine(port: socket.socket, device: str) -> "Engine":
    """Import torch and transformers, seconds of work, and make the engine of a device."""
    remember_index(user_cache_path("meshnet"))
    with lasting_imports():
        from meshnet_worker.engine.device import choose_device
        from meshnet_worker.engine.serving import Engine

    return Engine(port, choose_device(device))


def _exit_on_signal(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
