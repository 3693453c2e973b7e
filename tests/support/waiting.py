"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def settle(condition: Callable[[], object], seconds: float = 200.0) -> bool:
    """Wait until ``condition`` holds; False where it does not for so long that a test had better fail."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(condition())
