"""Data sets as users have them (arrays, torch's, torchvision's, those of Hugging Face) as a :class:`Dataset`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL.Image import Image

from engine.base.errors import ConfigError, DataError
from engine.data.samples.dataset import AS_IS, Dataset, Split, as_float32, assembled
from engine.data.samples.labels import Part, class_numbers, places, plain, refuse_masked
from engine.data.samples.notes import listed, note, warn

FORMS = "a fedskew.contract.Dataset, or {'train': SPLIT, 'test': SPLIT}, each (x, y), (x, y, owners) or a data set"
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
    frames = [
        tuple(map(str, getattr(value[split][0], "columns", ())))
        for split in ("train", "test")
        if _is_pair(value[split])
    ]
    if len(set(frames)) > 1:
        rule = f"has the columns {listed(frames[0])} in train, and {listed(frames[1])} in test"
        raise ConfigError("data.name", name, rule, "give both the same columns, in one order")
    columns = {split: _columns(value[split], f"data.name={name}: {split}") for split in ("train", "test")}
    where = ("data.name", name)
    labels, classes = class_numbers(where, [Part(split, one.labels, one.classes) for split, one in columns.items()])
    held = {split: Part(split, one.owners) for split, one in columns.items() if one.owners is not None}
    users = plain(where, list(held.values()))
    users = places(users)[0] if users and users[0].dtype.kind == "U" else users
    owners = dict(zip(held, users, strict=True))
    splits = [
        Split(np.ascontiguousarray(one.images), numbers, owners.get(split))
        for (split, one), numbers in zip(columns.items(), labels, strict=True)
    ]
    ranges = " and ".join(f"{one.images.min():g} to {one.images.max():g}" for one in splits)
    note(f"samples {list(splits[0].images.shape[1:])}, {splits[0].images.dtype}, in train and test {ranges}")
    return assembled(name, classes, splits, None if splits[0].images.dtype == np.uint8 else AS_IS)


@dataclasses.dataclass
class _Columns:
    images: np.ndarray  # [N, C, H, W]
    labels: np.ndarray  # [N], numbers or names
    owners: np.ndarray | None
    classes: tuple[str, ...]


def _is_pair(split: Any) -> bool:
    return isinstance(split, tuple) and not isinstance(split, Split) and len(split) in (2, 3)


def _columns(split: Any, where: str) -> _Columns:
    if isinstance(split, Split):
        return _Columns(split.images, split.labels, split.owners, ())
    if _is_pair(split):
        for values in split[1:]:
            refuse_masked(values, where)
        images, (labels, *owners) = _array(split[0], where), map(_column, split[1:])
        return _Columns(_as_images(images, where), labels, owners[0] if owners else None, ())
    if not (hasattr(split, "__len__") and hasattr(split, "__getitem__")):
        raise DataError(f"{where} is a {type(split).__name__}, and must be (x, y), (x, y, owners) or a data set")
    items = [_pair(split[row], where) for row in range(len(split))]
    if not items:
        raise DataError(f"{where} is empty")
    samples = [_sample(x) for x, _, _ in items]
    kinds = {(x.shape, str(x.dtype)) for x in samples}
    if len(kinds) > 1:
        raise DataError(f"{where} has samples of several shapes or types ({sorted(kinds)[:2]}); give them one")
    images = _as_images(np.stack(samples), where)
    return _Columns(images, _column([y for _, y, _ in items]), None, _class_names(split, items[0][2]))


def _pair(item: Any, where: str) -> tuple[Any, Any, str]:
    """An item's sample and label; of a mapping, as Hugging Face has them, the columns that are named so, and the name
    of the label's.
    """
    if isinstance(item, Mapping):
        x = next((item[key] for key in ("image", "img", "pixel_values", "x", "features") if key in item), None)
        label = next((key for key in ("label", "labels", "fine_label", "y") if key in item), None)
        if x is None or label is None:
            raise DataError(f"{where} has the columns {', '.join(item)}; give pairs (image, label), or rename columns")
        return x, item[label], label
    if isinstance(item, Sequence) and len(item) == 2:
        return item[0], item[1], ""
    raise DataError(f"{where} has items of type {type(item).__name__}, which must be pairs (x, y)")


def _array(values: Any, where: str) -> np.ndarray:
    refuse_masked(values, where)
    try:
        return np.asarray(values)
    except ValueError:
        raise DataError(f"{where} has samples of several lengths; give each as many numbers") from None


def _column(values: Any) -> np.ndarray:
    """Labels or owners; those of a list stay what they are, so that a number among texts, or NaN, is seen."""
    return np.asarray(values, object if isinstance(values, list | tuple) else None)


def _sample(x: Any) -> np.ndarray:
    """One sample as an array; of a picture, as Pillow has it, the channels are put first."""
    if isinstance(x, Image) and x.mode in ("1", "P", "PA"):  # whose numbers are no brightness
        x = x.convert("L" if x.mode == "1" else "RGB")
    array = np.asarray(x)
    return array.transpose(2, 0, 1) if isinstance(x, Image) and array.ndim == 3 else array


def _class_names(split: Any, label: str) -> tuple[str, ...]:
    """The names of classes, as torchvision and Hugging Face keep them; none where there are none."""
    names, features = getattr(split, "classes", None), getattr(split, "features", None)
    if names is None and isinstance(features, Mapping):
        names = getattr(features.get(label), "names", None)
    if isinstance(names, Mapping):  # name -> number
        names = sorted(names, key=names.__getitem__)
    return tuple(map(str, names or ()))


def _as_images(x: np.ndarray, where: str) -> np.ndarray:
    """Samples as [N, C, H, W]: uint8 pixels, or float32.

    [N, D] are D features; [N, H, W] has one channel; of [N, H, W, C] the channels are put first.
    """
    if x.dtype.kind not in "fiub":
        raise DataError(f"{where} has samples of type {x.dtype}, and must have numbers")
    if not x.size:
        raise DataError(f"{where} is empty")
    are_pixels = x.ndim > 2 and x.dtype.kind in "iub" and x.min() >= 0 and x.max() <= 255
    if x.ndim == 2:
        x = x[:, :, None, None]
    elif x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[3] in CHANNELS and x.shape[1] not in CHANNELS:
        x = x.transpose(0, 3, 1, 2)
    if x.ndim != 4:
        raise DataError(f"{where} has samples of shape {list(x.shape[1:])}, and must have [D], [H, W] or [C, H, W]")
    if are_pixels:
        return x.astype(np.uint8)
    block, is_exact = as_float32(x)
    if not is_exact:
        warn(f"{where} has whole numbers of which float32 loses digits; are there keys among the features?")
    if not np.isfinite(block).all():
        raise DataError(f"{where} contains NaN or infinite values (of float32); fill them in or drop those rows")
    return block
