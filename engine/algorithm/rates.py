"""The learning rate over rounds."""

from __future__ import annotations


def decayed(lr: float, decay: float, round: int) -> float:
    """Return the learning rate in ``round`` (from 1): lr * decay^(round - 1)."""
    return lr * decay ** (round - 1)
