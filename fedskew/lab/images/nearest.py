"""The nearest training image of given images, by the distance between normalised pixels."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.data.samples.batches import Rows

CHUNK_BYTES = 64 * 2**20  # of normalised training images at a time, and of their distances


def nearest(x: Tensor, train: Rows) -> tuple[Tensor, Tensor]:
    """Find the nearest of images x [n, channels, height, width], normalised as ``train`` is, among all of ``train``.

    Returns their rows int64 [n] and distances float64 [n], root mean square over pixels and channels.

    A copy has distance 0: which row is nearest is decided by a product of matrices, its distance by the difference.
    """
    queries = x.flatten(1)
    best = torch.full((len(x),), torch.inf, dtype=x.dtype)
    rows = torch.zeros(len(x), dtype=torch.int64)
    chunk = max(1, CHUNK_BYTES // max(train.normalised_bytes(1), len(x) * x.element_size()))
    for part in torch.arange(len(train)).split(chunk):
        others = train.batch(part)[0].flatten(1)
        found, place = torch.cdist(queries, others, compute_mode="use_mm_for_euclid_dist").min(1)
        closer = found < best
        best[closer], rows[closer] = found[closer], part[place[closer]]
    distances = [
        (mine - train.batch(row)[0].flatten(1)).double().square().mean(1).sqrt()
        for mine, row in zip(queries.split(chunk), rows.split(chunk), strict=True)
    ]
    return rows, torch.cat(distances)
