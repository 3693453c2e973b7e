"""Blocks of clients: how a cohort is cut, and how what blocks sent is added. Knows nothing of workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch

AUTO_BLOCKS = 16  # blocks in a round: enough to balance a few actors, few enough that dispatch costs little


def cut_blocks(cohort: Sequence[int], block: int | Literal["auto"]) -> list[tuple[int, ...]]:
    """A cohort in its order, cut into blocks of equal size but for the last."""
    size = -(-len(cohort) // AUTO_BLOCKS) if block == "auto" else block
    return [tuple(cohort[start : start + size]) for start in range(0, len(cohort), size)]


def added(total: np.ndarray | None, array: np.ndarray, weight: float) -> np.ndarray:
    """``total + weight * array`` in float64, into ``total``."""
    term = torch.tensor(array, dtype=torch.float64)
    if total is None:
        return term.mul_(weight).numpy()
    torch.from_numpy(total).add_(term, alpha=weight)
    return total
