"""Waiting for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def settle(condition: Callable[[], object], seconds: float = 30.0) -> bool:
    """Wait until ``condition`` holds; False where it does not within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    return bool(condition())
