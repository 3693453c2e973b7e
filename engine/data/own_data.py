"""Data sets as users have them (arrays, torch's, torchvision's, those of Hugging Face) as a :class:`Dataset`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL.Image import Image

from engine.base.errors import DataError
from engine.data.samples.dataset import AS_IS, Dataset, Split, assembled

FORMS = (
    "a fedskew.contract.Dataset, or {'train': SPLIT, 'test': SPLIT} with splits as (x, y), (x, y, owners) or a data set"
)
CHANNELS = (1, 3, 4)  # by which a last axis of channels is known


def as_dataset(value: Any, name: str) -> Dataset:
    """Return what a user's function gave as a data set of that name; raise :class:`DataError` where it is none.

    It is a :class:`Dataset`, or has "train" and "test", or is a pair of them. A split is a :class:`Split`, arrays
    (x, y) or (x, y, owners), or a data set with a length whose items are (x, y) or mappings with an image and a label.
    """
    if isinstance(value, Dataset):
        return dataclasses.replace(value, name=name)
    if isinstance(value, tuple) and len(value) == 2:
        value = {"train": value[0], "test": value[1]}
    if not (isinstance(value, Mapping) and {"train", "test"} <= set(value)):
        raise DataError(f"data.name={name}: gave a {type(value).__name__}, and must give {FORMS}")
    columns = [_columns(value[split], f"data.name={name}: {split}") for split in ("train", "test")]
    labels, classes = _numbered([one.labels for one in columns], [one.classes for one in columns])
    splits = [
        Split(np.ascontiguousarray(one.images), numbers, one.owners)
        for one, numbers in zip(columns, labels, strict=True)
    ]
    return assembled(name, classes, splits, None if splits[0].images.dtype == np.uint8 else AS_IS)


@dataclasses.dataclass
class _Columns:
    images: np.ndarray  # [N, C, H, W]
    labels: np.ndarray  # [N], numbers or names
    owners: np.ndarray | None
    classes: tuple[str, ...] | None


def _columns(split: Any, where: str) -> _Columns:
    if isinstance(split, Split):
        return _Columns(split.images, split.labels, split.owners, None)
    if isinstance(split, tuple) and len(split) in (2, 3):
        images, labels, *owners = (np.asarray(one) for one in split)
        return _Columns(_as_images(images, where), labels, owners[0].astype(np.int64) if owners else None, None)
    if not (hasattr(split, "__len__") and hasattr(split, "__getitem__")):
        raise DataError(f"{where} is a {type(split).__name__}, and must be (x, y), (x, y, owners) or a data set")
    items = [_pair(split[row], where) for row in range(len(split))]
    if not items:
        raise DataError(f"{where} is empty")
    samples = [_sample(x) for x, _ in items]
    shapes = {x.shape for x in samples}
    if len(shapes) > 1:
        raise DataError(f"{where} has samples of several shapes ({sorted(shapes)[:2]}); resize them to one")
    images = _as_images(np.stack(samples), where)
    return _Columns(images, np.asarray([y for _, y in items]), None, _class_names(split))


def _pair(item: Any, where: str) -> tuple[Any, Any]:
    """An item's sample and label; of a mapping, as Hugging Face has them, the columns that are named so."""
    if isinstance(item, Mapping):
        x = next((item[key] for key in ("image", "img", "pixel_values", "x", "features") if key in item), None)
        y = next((item[key] for key in ("label", "labels", "fine_label", "y") if key in item), None)
        if x is None or y is None:
            raise DataError(f"{where} has the columns {', '.join(item)}; give pairs (image, label), or rename columns")
        return x, y
    if isinstance(item, Sequence) and len(item) == 2:
        return item[0], item[1]
    raise DataError(f"{where} has items of type {type(item).__name__}, which must be pairs (x, y)")


def _sample(x: Any) -> np.ndarray:
    """One sample as an array; of a picture, as Pillow has it, the channels are put first."""
    array = np.asarray(x)
    return array.transpose(2, 0, 1) if isinstance(x, Image) and array.ndim == 3 else array


def _class_names(split: Any) -> tuple[str, ...] | None:
    """The names of classes, as torchvision and Hugging Face keep them; None where there are none."""
    names = getattr(split, "classes", None)
    features = getattr(split, "features", None)
    if names is None and isinstance(features, Mapping):
        names = next((one.names for one in features.values() if hasattr(one, "names")), None)
    return tuple(map(str, names)) if names is not None else None


def _as_images(x: np.ndarray, where: str) -> np.ndarray:
    """Samples as [N, C, H, W]: uint8 pixels, or float32.

    [N, D] are D features; [N, H, W] has one channel; of [N, H, W, C] the channels are put first.
    """
    if x.dtype.kind not in "fiub":
        raise DataError(f"{where} has samples of type {x.dtype}, and must have numbers")
    if x.ndim == 2:
        x = x[:, :, None, None].astype(np.float32)
    elif x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[3] in CHANNELS and x.shape[1] not in CHANNELS:
        x = x.transpose(0, 3, 1, 2)
    if x.ndim != 4:
        raise DataError(f"{where} has samples of shape {list(x.shape[1:])}, and must have [D], [H, W] or [C, H, W]")
    if x.dtype.kind in "iub" and x.min() >= 0 and x.max() <= 255:
        return x.astype(np.uint8)
    if not np.isfinite(x).all():
        raise DataError(f"{where} contains NaN or infinite values; fill them in or drop those rows")
    return x.astype(np.float32)


def _numbered(
    labels: Sequence[np.ndarray], classes: Sequence[tuple[str, ...] | None]
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Labels of both splits as class numbers int64, and the names of the classes."""
    if all(one.dtype.kind in "iu" for one in labels):
        count = int(max(one.max() for one in labels)) + 1
        return [one.astype(np.int64) for one in labels], classes[0] or tuple(map(str, range(count)))
    names, places = np.unique(np.concatenate([one.astype(str) for one in labels]), return_inverse=True)
    return list(np.split(places.astype(np.int64), [len(labels[0])])), tuple(names.tolist())
