"""The most memory that a process comes to, measured, and how many of its like fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.base import devices
from engine.base.errors import ResourceError
from engine.client.peak_memory import CONTEXT, USABLE, PeakMemory, measure_peak

GB = 10**9


def test_how_many_fit() -> None:
    """Kills: rounding up; memory that nobody can use up to its last byte."""
    assert PeakMemory(needed=2 * GB, total=int(16 * GB / USABLE) + 1).fitting == 8
    assert PeakMemory(needed=2 * GB, total=int(16 * GB / USABLE) - GB).fitting == 7
    assert PeakMemory(needed=17 * GB, total=16 * GB).fitting == 0


def test_the_peak_of_a_process_is_seen() -> None:
    """64 MB that are held for a moment. Kills: memory as it is after the trial, or before it."""
    blocks: list[np.ndarray] = []

    def trial() -> None:
        extra = devices.most_resident() - devices.resident()[0]  # room below what it once was
        blocks.append(np.ones((extra + 64 * 2**20) // 8))
        blocks.clear()

    own = devices.resident()[1]
    peak = measure_peak(trial, "cpu")
    assert own + 60 * 2**20 < peak.needed
    assert peak.total == devices.memory("cpu") > peak.needed


def test_a_card_that_is_too_small_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: torch's page of advice where a sentence is due; CUDA's own memory forgotten."""
    monkeypatch.setattr(devices, "memory", lambda device: 16 * GB)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: GB)
    assert measure_peak(lambda: None, "cuda") == PeakMemory(GB + CONTEXT, 16 * GB)

    def trial() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")

    with pytest.raises(ResourceError, match=r"not fit on the card .*\(CUDA out of memory\); lower local.batch"):
        measure_peak(trial, "cuda")
