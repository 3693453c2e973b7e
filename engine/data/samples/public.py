"""The public set: training samples that no client holds and that everybody may see."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import torch
from torch import Tensor

from engine.base.errors import ConfigError, require
from engine.data.samples.batches import Rows

PublicSet = Callable[[int], tuple[Tensor, Tensor]]  # samples of each class -> images [n, ...], labels [n]


class PublicRows:
    """The samples ``indices`` [n] of a data set, on its device; see ``public`` in :mod:`engine.algorithm`."""

    def __init__(self, rows: Rows, indices: Tensor) -> None:
        self._rows = rows
        self._indices = indices

    def __call__(self, per_class: int) -> tuple[Tensor, Tensor]:
        """Return the first ``per_class`` samples of each class: images [n, C, H, W] and labels [n].

        Raises :class:`ConfigError` where a class has fewer.
        """
        labels = self._rows.labels[self._indices]
        classes = labels.unique().tolist()
        if not classes:
            none_set_aside(per_class)
        of_classes = [self._indices[labels == c] for c in classes]
        least = min(len(rows) for rows in of_classes)
        rule = f"is more than the {least} public samples that there are of each class"
        repair = f"set it to {least} or less, or raise partition.public_per_class"
        require(per_class <= least, "per_class", per_class, rule, repair)
        return self._rows.batch(torch.cat([rows[:per_class] for rows in of_classes]))


def none_set_aside(per_class: int) -> NoReturn:
    """Raise the error for ``per_class`` public rows where a partition has set none aside."""
    raise ConfigError(
        "per_class", per_class, "asks for public samples, and there are none", "set partition.public_per_class"
    )
