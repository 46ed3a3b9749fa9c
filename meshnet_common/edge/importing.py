"""Imports at the start of a program, which are most of the time that it takes to start."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lasting_imports() -> Iterator[None]:
    """Import inside the block without looking for garbage, of which modules make none.

    Whatever is there after it is left out of every later look as well.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
