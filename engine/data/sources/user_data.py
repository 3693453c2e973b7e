"""The user's own data: image folders and parquet files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.base.errors import DataError, require
from engine.data.dataset import Dataset, MeanStd, Source, Split, assembled
from engine.data.sources.finding import existing
from engine.data.sources.formats import (
    MOST_CLASSES,
    ParquetColumns,
    decode_images,
    image_tree,
    read_files,
    read_parquet_images,
)


@dataclass(frozen=True, kw_only=True)
class ImageFolder(Source):
    """Images in train/<class>/... and test/<class>/... below ``root``; classes are numbered by sorted name.

    size: resize to ``size`` x ``size`` pixels; None keeps the images, which must have one size.
    """

    root: str
    size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.size is None or self.size >= 1, "size", self.size, "must be at least 1 pixel")

    def folder(self, download: bool = False) -> Path:
        return existing(self.root, "train/<class>/ and test/<class>/")

    def read(self) -> Dataset:
        return read_tree("imagefolder", self.folder(), self.size)


@dataclass(frozen=True, kw_only=True)
class Parquet(Source):
    """Encoded images in train-*.parquet and test-*.parquet (or train.parquet, test.parquet) below ``root``.

    image_column: bytes, or a struct with ``bytes`` as Hugging Face writes it. label_column: class numbers, or
    class names. owner_column: the user of each sample (numbers or texts), for ``partition.name=natural``.
    size: resize to ``size`` x ``size`` pixels.
    """

    root: str
    image_column: str = "image"
    label_column: str = "label"
    owner_column: str | None = None
    size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.size is None or self.size >= 1, "size", self.size, "must be at least 1 pixel")

    def folder(self, download: bool = False) -> Path:
        return existing(self.root, "train-*.parquet and test-*.parquet")

    def read(self) -> Dataset:
        return read_parquet(
            "parquet", self.folder(), self.image_column, self.label_column, self.owner_column, self.size
        )


def parquet_files(root: Path, split: str) -> list[Path]:
    """List the sorted parquet files of a split in ``root`` or ``root``/data; [] if there are none."""
    for folder in (root, root / "data"):
        found = sorted({*folder.glob(f"{split}.parquet"), *folder.glob(f"{split}-*.parquet")})
        if found:
            return found
    return []


def read_parquet(
    name: str,
    root: Path,
    image: str,
    label: str,
    owner: str | None = None,
    size: int | None = None,
    mean_std: MeanStd | None = None,
    choose: Mapping[str, Callable[[np.ndarray], np.ndarray]] | None = None,
) -> Dataset:
    """Read a data set from the parquet files of ``root``, see :func:`read_parquet_images`; classes are numbered.

    mean_std: None computes them. choose: for each split, the function from labels to the sorted rows to keep. Raises
    :class:`DataError` where a split has no files, or labels that are no class numbers.
    """
    files = {split: parquet_files(root, split) for split in ("train", "test")}
    for split, paths in files.items():
        if not paths:
            raise DataError(f"data.root={root}: has no {split}-*.parquet (looked there and in data/)")
    train, test = (
        read_parquet_images(paths, image, label, owner, size, (choose or {}).get(split))
        for split, paths in files.items()
    )
    classes, labels = _number_labels(root, train, test)
    owners = (None, None) if train.owners is None or test.owners is None else _number(train.owners, test.owners)
    splits = [Split(c.images, n, o) for c, n, o in zip((train, test), labels, owners, strict=True)]
    return assembled(name, classes, splits, mean_std)


def _number_labels(
    root: Path, train: ParquetColumns, test: ParquetColumns
) -> tuple[tuple[str, ...], tuple[np.ndarray, ...]]:
    """Class names, and the labels of both splits as class numbers."""
    if train.labels.dtype.kind in "iu" and test.labels.dtype.kind in "iu":
        count = int(max(train.labels.max(), test.labels.max())) + 1
        if count > MOST_CLASSES:
            raise DataError(f"{root}: has the label {count - 1}, which is no class number; number classes from 0 on")
        return train.class_names or tuple(map(str, range(count))), (train.labels, test.labels)
    names = np.unique(np.concatenate([train.labels, test.labels]))
    return tuple(map(str, names)), _number(train.labels, test.labels)


def _number(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values of both splits as int64 places in their sorted union, so that one user has one number."""
    _, places = np.unique(np.concatenate([train, test]), return_inverse=True)
    places = places.astype(np.int64)
    return places[: len(train)], places[len(train) :]


def read_tree(name: str, root: Path, size: int | None = None, mean_std: MeanStd | None = None) -> Dataset:
    """Read a data set from image folders <split>/<class>/ below ``root``; raise :class:`DataError` if one is empty.

    size: resize to ``size`` x ``size`` pixels. mean_std: None computes them.
    """
    splits, classes = [], ()
    for split in ("train", "test"):
        folder = root / split
        tree = image_tree(folder) if folder.is_dir() else {}
        if not tree:
            raise DataError(f"data.root={root}: has no images in {split}/<class>/ (looked in {folder})")
        classes = classes or tuple(tree)
        unknown = sorted(set(tree) - set(classes))
        if unknown:
            raise DataError(f"{folder}: class {unknown[0]!r} is not among the training classes")
        files = [path for paths in tree.values() for path in paths]
        images = decode_images(read_files(files), len(files), size)
        labels = np.repeat([classes.index(c) for c in tree], [len(paths) for paths in tree.values()])
        splits.append(Split(images, labels.astype(np.int64)))
    return assembled(name, classes, splits, mean_std)
