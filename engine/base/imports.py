"""Imports that the garbage collector leaves alone.

A process that trains imports some thousand modules, all of which stay. The collector looks them through again and again
as they come, which takes a sixth of the time, and there is nothing in them to collect.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Switch the garbage collector off meanwhile, if it is on."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
