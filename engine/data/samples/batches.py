"""Rows on the device: a resident data set, and batches of a client's rows.

Shapes: N rows of the data set, n rows of a client, B of a batch; images [N, channels, height, width].
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from engine.algorithm import Tensors
from engine.data.samples.augmentation import augmented
from engine.data.samples.dataset import Dataset, Split


class Rows:
    """One split on a device, kept as it is stored (uint8) and normalised batch by batch.

    On the CPU the tensors may alias memory that a whole node shares: they are only ever read.
    """

    def __init__(self, dataset: Dataset, split: Split, device: torch.device, dtype: torch.dtype) -> None:
        self.images = _tensor(split.images, device)
        self.labels = _tensor(split.labels, device)
        scale = 255.0 if split.images.dtype == np.uint8 else 1.0
        mean = torch.tensor(dataset.mean, dtype=torch.float64)
        std = torch.tensor(dataset.std, dtype=torch.float64)
        shape = (1, -1, 1, 1)
        # (x / 255 - mean) / std as one multiplication and one addition
        self.scale = (1 / (scale * std)).to(device=device, dtype=dtype).view(shape)
        self.shift = (-mean / std).to(device=device, dtype=dtype).view(shape)

    def __len__(self) -> int:
        return len(self.labels)

    def normalised_bytes(self, rows: int) -> int:
        """Return the bytes of ``rows`` rows that are normalised in the run's precision."""
        return rows * self.images[0].numel() * self.scale.element_size()

    def batch(self, indices: Tensor, drawn: Tensors | None = None) -> tuple[Tensor, Tensor]:
        """Return the rows ``indices`` [B]: normalised images [B, ...] in the run's precision, and labels [B].

        drawn: by which the images are augmented, see ``augmentation.py``; none: they are as they are.
        """
        x = self.images.index_select(0, indices)
        if drawn:
            x = augmented(x, drawn)
        return x.to(self.scale.dtype).mul_(self.scale).add_(self.shift), self.labels.index_select(0, indices)


def _tensor(array: np.ndarray, device: torch.device) -> Tensor:
    with warnings.catch_warnings():  # shared memory is read-only, which is what it is used for here
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array).to(device)


def batch_sizes(
    num_rows: int, batch_size: int | Literal["full"], last_batch: Literal["keep", "drop", "wrap"]
) -> list[int]:
    """Return the rows of each batch of a pass as :func:`orders` cuts them, or of one full batch; [] for no rows."""
    if batch_size == "full":
        return [num_rows] if num_rows else []
    whole, short = divmod(num_rows, batch_size)
    last = {"keep": [short], "drop": [], "wrap": [batch_size]}[last_batch] if short else []
    return [batch_size] * whole + last


def orders(
    num_rows: int,
    batch_size: int,
    last_batch: Literal["keep", "drop", "wrap"],
    rng: torch.Generator,
) -> Iterator[list[Tensor]]:
    """Yield pass after pass, for ever, the positions [<= B] of each batch, drawn anew for every pass.

    Ends at once where each pass would be empty.
    """
    if num_rows == 0 or (last_batch == "drop" and num_rows < batch_size):
        return
    cuts = tuple(range(batch_size, num_rows, batch_size))
    while True:
        order = torch.randperm(num_rows, generator=rng)
        batches = list(order.tensor_split(cuts))
        short = num_rows % batch_size
        if short and last_batch == "drop":
            batches.pop()
        elif short and last_batch == "wrap":
            filled = torch.cat((batches[-1], order[torch.arange(batch_size - short) % num_rows]))
            batches[-1] = filled
        yield batches
