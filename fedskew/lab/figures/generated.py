"""Generated images by class, each with the training image that is nearest to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from engine.base.files import write_atomically
from engine.base.opening import read_bytes
from fedskew.lab.drawing import Drawing, new_figure, styled
from fedskew.lab.quantities import percent

GAP = 2  # pixels between images


@dataclass(frozen=True, eq=False)
class ImagePanels:
    """Images to be drawn, uint8 [rows, columns, channels, height, width]; each row is a class."""

    names: tuple[str, ...]  # of the rows; empty where images are made for no class
    generated: np.ndarray
    nearest: np.ndarray  # the training image nearest to each of them

    def save(self, path: Path) -> None:
        tensors = {"generated": self.generated, "nearest": self.nearest}
        write_atomically(path, safetensors.numpy.save({name: np.ascontiguousarray(t) for name, t in tensors.items()}))

    @classmethod
    def load(cls, path: Path, names: Sequence[str]) -> ImagePanels:
        return cls(tuple(names), **safetensors.numpy.load(read_bytes(path)))


@styled
def generated_images(name: str, summary: Mapping[str, Any], panels: ImagePanels, title: str = "") -> Drawing:
    """Generated images on the left, at the right in the same places the training images nearest to them.

    summary: of a :class:`~fedskew.lab.images.generated.Generated`.
    """
    rows, columns, _, height, width = panels.generated.shape
    panel = min(3.2, 0.4 * columns)
    figure = new_figure(2 * panel + 1.2, panel * rows * height / (columns * width) + 0.5)
    both: Any = figure.subplots(1, 2, sharey=True)
    titles = ("generated", "nearest training image, of any class")
    for axes, images, title_of_panel in zip(both, (panels.generated, panels.nearest), titles, strict=True):
        axes.imshow(_mosaic(images), interpolation="none")
        axes.set_title(title_of_panel)
        axes.set_xticks([])
        axes.set_yticks([row * (height + GAP) + height / 2 for row in range(rows)], panels.names)
        axes.grid(False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    share = summary["generated_agreement"]
    agreement = "" if share is None else f"The model takes {percent(share)} of them for the class asked for. "
    caption = (
        f"{title + ': ' if title else ''}{summary['images']:,} images generated after round {summary['round']}, of "
        f"which some are shown. {agreement}Distance to the nearest training image {summary['nearest_distance']:.3f}, "
        f"of test images {summary['nearest_distance_test']:.3f}, ratio {_text(summary['nearest_ratio'])}."
    )
    return Drawing(name, caption, figure, wide=True)


def _mosaic(images: np.ndarray) -> np.ndarray:
    """[height, width, 4] with transparent gaps, of uint8 [rows, columns, channels, height, width]."""
    rows, columns, channels, height, width = images.shape
    if channels not in (1, 3):
        images = images.mean(axis=2, keepdims=True).astype(np.uint8)
    colour = np.broadcast_to(images, (rows, columns, 3, height, width))
    tiles = np.concatenate([colour, np.full((rows, columns, 1, height, width), 255, np.uint8)], axis=2)
    tiles = np.pad(tiles, [(0, 0)] * 3 + [(0, GAP)] * 2)
    mosaic = tiles.transpose(0, 3, 1, 4, 2).reshape(rows * (height + GAP), columns * (width + GAP), 4)
    return mosaic[:-GAP, :-GAP]


def _text(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
