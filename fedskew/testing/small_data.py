"""Small data that can be learned, and clients that hold them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.data import Assignment, Dataset, Split

CLASSES = 4
TOKENS = (16, 1, 1)  # the shape of rows of token ids
SIZES = (20, 13, 7, 30, 9, 1, 24, 16)  # of clients, 120 in all; one has a single row


def images(samples: int = 120, shape: tuple[int, int, int] = (1, 8, 8), seed: int = 0) -> Split:
    """Return images that can be learned, or token ids 0 and 1: a pattern for each class under noise."""
    rng = np.random.default_rng(seed)
    patterns = np.random.default_rng(99).integers(0, 256, (CLASSES, *shape))
    labels = rng.integers(0, CLASSES, samples)
    noise = rng.integers(0, 256, (samples, *shape))
    rows, labels = ((patterns[labels] + noise) // 2).astype(np.uint8), labels.astype(np.int64)
    return Split((rows // 128).astype(np.float32) if shape == TOKENS else rows, labels)


def dataset(samples: int = 120, shape: tuple[int, int, int] = (1, 8, 8)) -> Dataset:
    """Return training images, and 40 test images of the same patterns."""
    return Dataset(
        name="tiny",
        classes=tuple("abcd"),
        train=images(samples, shape),
        test=images(40, shape, seed=1),
        mean=(0.0,) if shape == TOKENS else (0.5,) * shape[0],
        std=(1.0,) if shape == TOKENS else (0.25,) * shape[0],
        vocabulary=2 if shape == TOKENS else None,
    )


def assignment(sizes: Sequence[int], seed: int = 0) -> Assignment:
    """Return clients of the given sizes, rows dealt at random."""
    order = np.random.default_rng(seed).permutation(sum(sizes))
    cuts = np.cumsum(sizes)[:-1]
    return Assignment(tuple(np.sort(part).astype(np.int64) for part in np.split(order, cuts)))


def uneven_clients(labels: np.ndarray) -> Assignment:
    """Return five clients: of one row, of one class, of nine rows of one class, of nothing, of eight rows of one class.

    labels: int64 [N] of the training rows, in which every class has nine rows at least.
    """
    rows = [np.flatnonzero(labels == number) for number in range(CLASSES)]
    return Assignment((rows[0][:1], rows[1], rows[2][:9], np.empty(0, np.int64), rows[3][:8]))
