"""iNaturalist, with a natural owner for every training image: who took it.

Images keep their proportions: the shorter side becomes 8/7 of ``size``, then the centre is cut out. They are decoded
at that size into memory, at every start; what would not fit into half of the machine's memory is refused (all of
2019 at 224 pixels are 40 GB, at 64 pixels 3.3 GB). The mean and std are those of the training images that are kept.
``local.augment=flip`` is usual.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from engine.base.declared import Doc, Ge, Neutral
from engine.base.errors import DataError
from engine.base.files import expanded
from engine.base.opening import read_text, regular
from engine.data.samples.dataset import Dataset, Source, assembled
from engine.data.sources.finding import check_within, find_unpacked
from engine.data.sources.formats import MOST_CLASSES
from engine.data.sources.image_folders import Listing


@dataclass(frozen=True, kw_only=True)
class INaturalist2019(Source):
    """iNaturalist 2019 (FGVC6): 1,010 species, 268,243 images of 265,213 for training; validation is the test.

    Classes are numbered by category id. The owner of an image is its ``rights_holder``; those without one share an
    owner. Owners of training images come first, by name, so that ``partition.name=natural`` has no empty client.

    root: a folder with train2019.json, val2019.json and train_val2019/<supercategory>/<category>/<image>.jpg. None:
    ``inaturalist2019`` in the cache folder.

    user_file: a csv file that says who owns a training image instead: columns ``user_id`` or ``client_id``, and
    ``image_id``, ``data_path`` or ``sample_path`` (of which the file's name without its ending counts), such as
    FedScale's mapping to 2,295 users, CBFL's number. Training images that it does not list are left out, and test
    images then have no owners.
    """

    root: Annotated[str | None, Doc("folder with the files; null: in `~/.cache/fedskew`")] = None
    user_file: Annotated[
        str | None,
        Doc("csv file that says who owns an image, in place of the rights holder"),
        Neutral(None, "is the rights holder"),
    ] = None
    size: Annotated[int, Ge(1), Doc("cut out the centre, of this many pixels a side")] = 224

    def folder(self, download: bool = False) -> Path:
        page = "https://github.com/visipedia/inat_comp/tree/master/2019"
        archive = f"train_val2019.tar.gz, train2019.json.tar.gz and val2019.json.tar.gz from {page}"
        contents = ("train2019.json", "val2019.json", "train_val2019")
        return find_unpacked("inaturalist2019", self.root, (), contents, archive)

    def read(self) -> Dataset:
        root = self.folder()
        train, test = (_Annotated.read(root / f"{split}2019.json") for split in ("train", "val"))
        train_owners, test_owners = train.holders, test.holders
        if self.user_file is not None:
            table = expanded(self.user_file, "data.user_file")
            rows = _table(table, [("user_id", "client_id"), ("image_id", "data_path", "sample_path")])
            user_of = {Path(image).stem: user for user, image in rows}
            train = train.where(lambda file: Path(file).stem in user_of)
            if not train.files:
                raise DataError(f"{table}: lists no training image of train2019.json; give data.user_file another")
            train_owners, test_owners = [user_of[Path(file).stem] for file in train.files], None
        ids = sorted(train.categories)
        owners = _numbered(train_owners, test_owners)
        splits = []
        for name, part, owned in zip(("train", "test"), (train, test), owners, strict=True):
            labels = np.searchsorted(ids, part.labels)
            listing = Listing([root / file for file in part.files], labels.astype(np.int64), owned)
            splits.append(listing.decoded(self, name, self.size, crop=True))
        classes = tuple(train.categories[number] for number in ids)
        return assembled("inaturalist2019", classes, splits, None)


@dataclass(frozen=True, kw_only=True)
class _Annotated:
    """The images of an annotation file, in the order of their ids."""

    files: list[str]  # relative to the root
    labels: list[int]  # category ids
    holders: list[str]
    categories: Mapping[int, str]

    @classmethod
    def read(cls, path: Path) -> _Annotated:
        """Read a file in COCO's format; raise :class:`DataError` if it is none, or its parts do not fit together."""
        try:
            content: dict[str, Any] = json.loads(read_text(path))
            images = {int(image["id"]): image for image in content["images"]}
            labels = {int(row["image_id"]): int(row["category_id"]) for row in content["annotations"]}
            categories = {int(category["id"]): str(category["name"]) for category in content["categories"]}
            order = sorted(images)
            files = [str(images[image]["file_name"]) for image in order]
            holders = [str(images[image].get("rights_holder") or "") for image in order]
        except (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise DataError(f"{path}: not a readable annotation file ({reason}); download it again") from None
        if sorted(labels) != order or len(content["annotations"]) != len(content["images"]):
            counts = f"{len(content['annotations'])} for {len(content['images'])} images"
            raise DataError(f"{path}: must have one annotation for each image, but has {counts}; download it again")
        unknown = sorted(set(labels.values()) - set(categories))
        if unknown:
            raise DataError(f"{path}: has the category_id {unknown[0]}, which is no category; download it again")
        check_within(path, files)
        return cls(files=files, labels=[labels[image] for image in order], holders=holders, categories=categories)

    def where(self, keep: Callable[[str], bool]) -> _Annotated:
        """Return the images whose file ``keep`` accepts."""
        rows = [row for row, file in enumerate(self.files) if keep(file)]
        return _Annotated(
            files=[self.files[row] for row in rows],
            labels=[self.labels[row] for row in rows],
            holders=[self.holders[row] for row in rows],
            categories=self.categories,
        )


USER_120K_ARCHIVES = (
    "inaturalist-user-120k.zip (see federated_vision_datasets in "
    "https://github.com/google-research/google-research) and train_val_images.tar.gz of iNaturalist 2017 "
    "(https://github.com/visipedia/inat_comp/tree/master/2017)"
)


@dataclass(frozen=True, kw_only=True)
class INaturalistUser120k(Source):
    """iNaturalist-User-120k (Hsu et al. 2020): 120,300 images of 9,275 users, 1,203 classes of iNaturalist 2017.

    The test images have no owners.

    root: a folder with federated_train_user_120k.csv (columns user_id, image_id, class) and test.csv or
    federated_test.csv (image_id, class), there or in inaturalist-user-120k/, and with iNaturalist 2017's images,
    train_val_images/<supercategory>/<category>/<image_id>.jpg. None: ``inaturalist_user_120k`` in the cache folder.
    """

    root: Annotated[str | None, Doc("folder with the files; null: in `~/.cache/fedskew`")] = None
    size: Annotated[int, Ge(1), Doc("cut out the centre, of this many pixels a side")] = 224

    def folder(self, download: bool = False) -> Path:
        root = find_unpacked("inaturalist_user_120k", self.root, (), ("train_val_images",), USER_120K_ARCHIVES)
        self._tables(root)
        return root

    @staticmethod
    def _tables(root: Path) -> dict[str, Path]:
        return {
            "train": _first(root, ("federated_train_user_120k.csv",), USER_120K_ARCHIVES),
            "test": _first(root, ("test.csv", "federated_test.csv"), USER_120K_ARCHIVES),
        }

    def read(self) -> Dataset:
        root = self.folder()
        tables = self._tables(root)
        train = _table(tables["train"], [("user_id",), ("image_id",), ("class",)])
        test = [("", *row) for row in _table(tables["test"], [("image_id",), ("class",)])]
        files = {Path(image).stem: image for image in _jpegs(root / "train_val_images")}
        owners, _ = _numbered([user for user, _, _ in train], None)
        splits, classes = [], 0
        for name, rows, owned in (("train", train, owners), ("test", test, None)):
            stems = [Path(image).stem for _, image, _ in rows]
            missing = [stem for stem in stems if stem not in files]
            if missing:
                place, wanted = root / "train_val_images", f"{len(rows)} images that {tables[name].name} lists"
                rule = f"has not {len(missing)} of the {wanted}, such as {missing[0]}.jpg"
                raise DataError(f"{place}: {rule}; unpack train_val_images.tar.gz there")
            labels = _whole_numbers(tables[name], [label for _, _, label in rows])
            classes = max(classes, int(labels.max()) + 1)
            listing = Listing([Path(files[stem]) for stem in stems], labels, owned)
            splits.append(listing.decoded(self, name, self.size, crop=True))
        return assembled("inaturalist_user_120k", tuple(map(str, range(classes))), splits, None)


def _first(root: Path, names: tuple[str, ...], archive: str) -> Path:
    """The first of ``names`` that is there."""
    places = [folder / name for folder in (root, root / "inaturalist-user-120k") for name in names]
    found = next((place for place in places if place.exists()), None)
    if found is None:
        looked = f"{root} and {root / 'inaturalist-user-120k'}"
        raise DataError(f"{' or '.join(names)} was not found (looked in {looked}); download {archive}, unpack it there")
    return found


def _jpegs(folder: Path) -> list[str]:
    """All .jpg files below ``folder``; half a million paths are quicker as texts."""
    return [os.path.join(at, name) for at, _, names in os.walk(folder) for name in names if name.endswith(".jpg")]


def _table(path: Path, columns: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Rows of a csv file: for each of ``columns`` the first of its names that the file has."""
    try:
        with open(path, encoding="utf-8", newline="", opener=regular) as file:
            reader = csv.DictReader(file)
            header = reader.fieldnames or []
            chosen = [next((name for name in names if name in header), None) for names in columns]
            for names, found in zip(columns, chosen, strict=True):
                if found is None:
                    has = ", ".join(header) or "nothing"
                    raise DataError(f"{path}: has no column {' or '.join(names)}, but {has}; get the file again")
            rows = [tuple(row[name] for name in chosen if name is not None) for row in reader]
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path}: not a readable csv file ({error}); get it again") from None
    broken = next((line for line, row in enumerate(rows, 2) if None in row or "" in row), None)
    if broken is not None or not rows:
        raise DataError(f"{path}: {f'row {broken} has empty values' if broken else 'has no rows'}; get it again")
    return rows


def _whole_numbers(path: Path, texts: list[str]) -> np.ndarray:
    """Labels int64 [N]."""
    longest = len(str(MOST_CLASSES)) - 1
    bad = next((text for text in texts if not text.isdecimal() or len(text) > longest), None)
    if bad is not None:
        raise DataError(f"{path}: has the class {bad!r}, which is not a whole number from 0 on; get it again")
    return np.asarray([int(text) for text in texts], dtype=np.int64)


def _numbered(train: list[str], test: list[str] | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Owners int64 [N] of both splits: those with training images first, each group by name."""
    users = sorted(set(train))
    users += sorted(set(test or ()) - set(users))
    number = {user: place for place, user in enumerate(users)}
    of_train = np.asarray([number[user] for user in train], dtype=np.int64)
    return of_train, None if test is None else np.asarray([number[user] for user in test], dtype=np.int64)
