"""Generated images as the picture shows them: some of each class, as the pixels that they are stored as."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from engine.data.samples.batches import Rows
from fedskew.lab.figures.generated import ImagePanels

SHOWN = 8  # images of a class
MOST_CLASSES = 20


def panels(generated: Tensor, nearest: Tensor, names: Sequence[str], train: Rows) -> ImagePanels:
    """Pick the images that are drawn.

    generated, nearest: normalised images [n, channels, height, width], as many of each class of ``names`` and in their
    order.
    """
    each = len(generated) // len(names)
    rows, columns = min(len(names), MOST_CLASSES), min(each, SHOWN)

    def some(x: Tensor) -> np.ndarray:
        return _pixels(x.unflatten(0, (len(names), each))[:rows, :columns].flatten(0, 1), train).reshape(
            rows, columns, *x.shape[1:]
        )

    return ImagePanels(tuple(names[:rows]), some(generated), some(nearest))


def _pixels(x: Tensor, train: Rows) -> np.ndarray:
    """Normalised images as they are stored, uint8; what is no pixel (features) is stretched over 0 to 255."""
    stored = (x - train.shift) / train.scale
    if train.images.is_floating_point():
        low, high = train.images.min(), train.images.max()
        stored = 255 * (stored - low) / (high - low)
    return stored.round().clamp(0, 255).byte().numpy()
