"""Samples of a given mean and spread."""

from __future__ import annotations

import numpy as np


def sample(n: int, mean: float, std: float, seed: int = 0) -> np.ndarray:
    """``n`` values whose mean and standard deviation (ddof=1) are exactly these."""
    drawn = np.random.default_rng(seed).normal(size=n)
    return mean + std * (drawn - drawn.mean()) / drawn.std(ddof=1)
