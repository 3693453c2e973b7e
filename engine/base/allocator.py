"""Memory that this process has freed: kept, or given back (with glibc's allocator and Arrow's; no other is touched)."""

from __future__ import annotations

import ctypes

import pyarrow as pa


def keep_freed_memory() -> None:
    """Let glibc keep what a training step frees for the next step, up to 512 MB.

    Otherwise each step's activations go back to the system and come again, page by page: 900 page faults a step for
    ``cnn``, a twentieth of its time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-3, 32 * 2**20)  # M_MMAP_THRESHOLD, at most this
        mallopt(-1, 512 * 2**20)  # M_TRIM_THRESHOLD


def give_back_freed_memory() -> None:
    """Return freed memory to the system, once: after dividing data among 100,000 clients 70 MB lie idle otherwise."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
    give_back_arrows_memory()


def give_back_arrows_memory() -> None:
    """Return what Arrow has freed to the system: it keeps pages of the tables it reads and writes, others each time."""
    pa.default_memory_pool().release_unused()
