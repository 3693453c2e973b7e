"""A training set cut to a long tail: how many rows of each class remain, and which."""

from __future__ import annotations

from typing import Literal

import numpy as np

from engine.algorithm.seeds import numpy_generator
from engine.base.errors import require

Tail = Literal["exponential", "step"]


def tail_counts(sizes: np.ndarray, factor: float, kind: Tail) -> np.ndarray:
    """Return the rows that remain of each class, int64 [C], where classes have ``sizes`` int64 [C].

    n is the size of the smallest class. Of an exponential tail class c keeps n / factor^(c / (C - 1)) rows, rounded
    down, as long-tailed CIFAR does (Cui et al., CVPR 2019); of a step the first C // 2 classes keep n and the others
    n / factor (Buda et al., Neural Networks 2018). Raises :class:`ConfigError` where a class would have none.
    """
    classes, least = len(sizes), int(sizes.min())
    powers = [float(c >= classes // 2) if kind == "step" else c / max(classes - 1, 1) for c in range(classes)]
    counts = np.array([int(least / factor**power) for power in powers])
    rule = f"leaves class {classes - 1} no row, as the smallest class has {least}"
    require(counts.min() > 0, "data.imbalance", factor, rule, f"set it to {max(least, 1)} or less")
    return counts


def drawn_rows(labels: np.ndarray, counts: np.ndarray, seed: int, purpose: str) -> np.ndarray:
    """Draw sorted rows int64 of ``labels`` int64 [N], ``counts[c]`` of each class c.

    A class's rows are put in an order by ``seed`` and ``purpose``, and its first are drawn: smaller counts draw some of
    the same.
    """
    rng = numpy_generator(seed, purpose)
    orders = [rng.permutation(np.flatnonzero(labels == c)) for c in range(len(counts))]
    return np.sort(np.concatenate([order[:count] for order, count in zip(orders, counts, strict=True)]))
