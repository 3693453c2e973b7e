"""Data sets that come as folders of images: CINIC-10, Omniglot, Tiny-ImageNet and 200 classes of ImageNet.

Only images that a subset keeps are decoded. Papers augment CINIC-10 and Tiny-ImageNet with
``local.augment=crop_flip`` and ImageNet with at least ``flip``; a flip would change Omniglot's characters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from engine.algorithm.seeds import numpy_generator
from engine.base.declared import Doc, Ge, Neutral
from engine.base.errors import DataError, require
from engine.base.files import expanded
from engine.base.opening import read_text
from engine.data.samples.dataset import Dataset, MeanStd, Source, Split, assembled
from engine.data.sources.finding import check_within, find_unpacked
from engine.data.sources.formats import decode_images, image_tree, is_hidden, read_files

CINIC10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# As their authors and most papers give them, of the training images.
CINIC10_MEAN_STD: MeanStd = ((0.4789, 0.4723, 0.4305), (0.2421, 0.2383, 0.2587))
TINY_IMAGENET_MEAN_STD: MeanStd = ((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821))
IMAGENET_MEAN_STD: MeanStd = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True, eq=False)
class Listing:
    """A split before it is decoded: image files, their labels int64 [N], and owners int64 [N] if they have any."""

    files: list[Path]
    labels: np.ndarray
    owners: np.ndarray | None = None

    def decoded(self, source: Source, split: str, size: int | None = None, crop: bool = False) -> Split:
        """Decode the samples that ``source`` keeps of the split "train" or "test", as RGB; see ``decode_images``."""
        rows = source.chosen(split, self.labels)
        images = decode_images(read_files(self.files[row] for row in rows), len(rows), size, "RGB", crop)
        return Split(images, self.labels[rows], None if self.owners is None else self.owners[rows])


def list_classes(folder: Path, classes: tuple[str, ...], archive: str) -> Listing:
    """List the images in ``folder``/<class>/..., by class and then by name; refuse a class without images."""
    tree = image_tree(folder) if folder.is_dir() else {}
    missing = [name for name in classes if name not in tree]
    if missing:
        raise DataError(
            f"{folder}: has no images of {len(missing)} of the {len(classes)} classes, the first of which is "
            f"{missing[0]!r}; unpack {archive} again"
        )
    files = [file for name in classes for file in tree[name]]
    labels = np.repeat(np.arange(len(classes)), [len(tree[name]) for name in classes])
    return Listing(files, labels.astype(np.int64))


# ------------------------------------------------------------------------------------------------ CINIC-10
@dataclass(frozen=True, kw_only=True)
class Cinic10(Source):
    """CINIC-10 (Darlow et al. 2018), 90,000 images each for training, validation and test, 32x32 RGB.

    root: a folder with train/, valid/ and test/, each with a folder for each of CIFAR-10's classes. None:
    ``cinic10`` in the cache folder.

    valid: what the validation images are for: ``unused``; ``train`` adds them to the training images; ``test``
    takes them in place of the test images, to choose hyper-parameters by.
    """

    root: Annotated[str | None, Doc("folder with the files; null: in `~/.cache/fedskew`")] = None
    valid: Annotated[
        Literal["unused", "train", "test"],
        Doc("the validation images: not used, added to training, or in place of the test"),
        Neutral("unused", "leaves them out"),
    ] = "unused"

    def _needed(self) -> tuple[str, ...]:
        return ("train", "test") if self.valid == "unused" else ("train", "valid", "test")

    def folder(self, download: bool = False) -> Path:
        archive = "CINIC-10.tar.gz from https://datashare.ed.ac.uk/handle/10283/3192"
        return find_unpacked("cinic10", self.root, ("CINIC-10",), self._needed(), archive)

    def read(self) -> Dataset:
        root = self.folder()
        parts = {name: list_classes(root / name, CINIC10_CLASSES, "CINIC-10.tar.gz") for name in self._needed()}
        train, test = parts["train"], parts["valid" if self.valid == "test" else "test"]
        if self.valid == "train":
            extra = parts["valid"]
            train = Listing(train.files + extra.files, np.concatenate([train.labels, extra.labels]))
        splits = [train.decoded(self, "train"), test.decoded(self, "test")]
        return assembled("cinic10", CINIC10_CLASSES, splits, CINIC10_MEAN_STD)


# ------------------------------------------------------------------------------------------------ Omniglot
DRAWERS = 20  # of every character
HALVES = ("images_background", "images_evaluation")


@dataclass(frozen=True, kw_only=True)
class Omniglot(Source):
    """Omniglot (Lake et al. 2015): 1,623 characters of 50 alphabets, each drawn by 20 people; here 28x28 grey.

    Ink is made white (255) on black, as in MNIST, and 105x105 becomes 28x28. The owner of a sample is its
    alphabet: with ``partition.name=natural`` there are 50 clients of 14 to 55 characters (PFLEGO). Classes are all
    characters, by alphabet and number. The mean and std are computed.

    root: a folder with images_background/ and images_evaluation/ (<alphabet>/<character>/<number>_<drawer>.png), or
    one that torchvision's Omniglot wrote. None: ``omniglot`` in the cache folder.

    rotations: every drawing also turned by 90, 180 and 270 degrees, with the same label, as PFLEGO does.

    split: ``drawers``: drawers 16 to 20 of every alphabet are the test, so that nobody is in both splits.
    ``images``: a quarter of the images of each character at random, after rotation (PFLEGO's code): a test image's
    rotated twin is then in training, which flatters the accuracy.
    """

    root: Annotated[str | None, Doc("folder with the files; null: in `~/.cache/fedskew`")] = None
    rotations: Annotated[
        bool, Doc("every drawing also turned by 90, 180 and 270 degrees"), Neutral(False, "turns none")
    ] = True
    split: Annotated[
        Literal["drawers", "images"],
        Doc("test drawings are of other people, or any quarter of the images as in PFLEGO's code"),
    ] = "drawers"

    def folder(self, download: bool = False) -> Path:
        archive = (
            "images_background.zip and images_evaluation.zip from "
            "https://github.com/brendenlake/omniglot/tree/master/python"
        )
        return find_unpacked("omniglot", self.root, ("omniglot-py", "python"), HALVES, archive)

    def read(self) -> Dataset:
        root = self.folder()
        found = [alphabet for half in HALVES for alphabet in _folders(root / half)]
        alphabets = sorted(found, key=lambda folder: folder.name)
        characters = [character for alphabet in alphabets for character in _folders(alphabet)]
        files = [file for character in characters for file in _drawings(character)]
        small = 255 - decode_images(read_files(files), len(files), 28, "L")
        images = small.reshape(len(characters), DRAWERS, 1, 28, 28)
        if self.rotations:
            images = np.concatenate([np.rot90(images, turns, axes=(3, 4)) for turns in range(4)], axis=2)
        is_test = self._is_test(*images.shape[:3])
        places = [alphabet for alphabet, folder in enumerate(alphabets) for _ in _folders(folder)]
        labels = np.broadcast_to(np.arange(len(characters))[:, None, None], is_test.shape).astype(np.int64)
        owners = np.asarray(places, dtype=np.int64)[labels]
        splits = [Split(images[rows][:, None], labels[rows], owners[rows]) for rows in (~is_test, is_test)]
        classes = tuple(f"{character.parent.name}/{character.name}" for character in characters)
        return assembled("omniglot", classes, splits, None)

    def _is_test(self, characters: int, drawers: int, turns: int) -> np.ndarray:
        """bool [characters, drawers, turns]"""
        if self.split == "drawers":
            last = np.arange(drawers) >= drawers - drawers // 4
            return np.broadcast_to(last[None, :, None], (characters, drawers, turns))
        ranks = numpy_generator(0, "omniglot/images").random((characters, drawers * turns)).argsort(axis=1)
        return (ranks < drawers * turns // 4).reshape(characters, drawers, turns)


def _folders(parent: Path) -> list[Path]:
    found = sorted(path for path in parent.iterdir() if path.is_dir() and not is_hidden(path.name))
    if not found:
        raise DataError(f"{parent}: has no folders; unpack {parent.name}.zip again")
    return found


def _drawings(character: Path) -> list[Path]:
    """The 20 drawings of a character, by drawer."""
    by_drawer = {}
    for path in character.glob("[!.]*.png"):
        named = re.fullmatch(r"\d+_(\d+)\.png", path.name)
        by_drawer[int(named[1]) if named else 0] = path
    if sorted(by_drawer) != list(range(1, DRAWERS + 1)):
        raise DataError(
            f"{character}: must hold the drawings <number>_01.png to <number>_20.png, but has {len(by_drawer)} of "
            "them; unpack images_background.zip and images_evaluation.zip again"
        )
    return [by_drawer[drawer] for drawer in sorted(by_drawer)]


# ------------------------------------------------------------------------------------------ Tiny-ImageNet
@dataclass(frozen=True, kw_only=True)
class TinyImageNet(Source):
    """Tiny-ImageNet-200 (Stanford CS231n): 200 classes, 100,000 + 10,000 images, 64x64 RGB.

    The validation images are the test split, as the official test images have no labels. Classes are numbered by
    sorted wnid and named by words.txt, if it is there.

    root: a folder with wnids.txt, train/<wnid>/images/*.JPEG and val/ (images/ and val_annotations.txt), or
    ``tiny-imagenet-200`` with them. None: ``tiny_imagenet`` in the cache folder.
    """

    root: Annotated[str | None, Doc("folder with the files; null: in `~/.cache/fedskew`")] = None

    def folder(self, download: bool = False) -> Path:
        archive = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
        contents = ("wnids.txt", "train", "val/images", "val/val_annotations.txt")
        return find_unpacked("tiny_imagenet", self.root, ("tiny-imagenet-200",), contents, archive)

    def read(self) -> Dataset:
        root = self.folder()
        wnids = tuple(sorted(_lines(root / "wnids.txt")))
        train = list_classes(root / "train", wnids, "tiny-imagenet-200.zip")
        test = self._validation(root / "val", wnids)
        splits = [train.decoded(self, "train"), test.decoded(self, "test")]
        return assembled("tiny_imagenet", _words(root / "words.txt", wnids), splits, TINY_IMAGENET_MEAN_STD)

    @staticmethod
    def _validation(folder: Path, wnids: tuple[str, ...]) -> Listing:
        table = folder / "val_annotations.txt"
        number = {wnid: place for place, wnid in enumerate(wnids)}
        rows = [line.split("\t") for line in _lines(table)]
        bad = next((row for row in rows if len(row) < 2 or row[1] not in number), None)
        if bad is not None:
            raise DataError(
                f"{table}: the line {' '.join(bad)!r} has no class of wnids.txt; unpack tiny-imagenet-200.zip again"
            )
        check_within(table, [row[0] for row in rows])
        labels = np.asarray([number[row[1]] for row in rows], dtype=np.int64)
        return Listing([folder / "images" / row[0] for row in rows], labels)


def _lines(path: Path) -> list[str]:
    """The lines of a text file that are not empty, without their ends."""
    try:
        lines = [line.strip() for line in read_text(path).splitlines()]
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as text ({error})") from None
    found = [line for line in lines if line]
    if not found:
        raise DataError(f"{path}: is empty; get it again")
    return found


def _words(path: Path, wnids: tuple[str, ...]) -> tuple[str, ...]:
    """The first word for each wnid, or the wnid itself."""
    rows = [line.partition("\t") for line in _lines(path)] if path.exists() else []
    words = {wnid: names.split(",")[0].strip() for wnid, _, names in rows}
    return tuple(words.get(wnid) or wnid for wnid in wnids)


# ----------------------------------------------------------------------------------- 200 classes of ImageNet
@dataclass(frozen=True, kw_only=True)
class ImageNet200(Source):
    """200 classes of ImageNet (ILSVRC 2012), 500 training images each and all 50 for validation, as test; RGB.

    FedAlign and, by its numbers, FedSER. Classes are numbered by sorted wnid. Images keep their proportions: the
    shorter side becomes 8/7 of ``size``, then the centre is cut out. At 224 pixels both splits take 16.6 GB.

    root: a folder with train/<wnid>/*.JPEG and val/<wnid>/*.JPEG. None: ``imagenet200`` in the cache folder.

    class_list: a text file with one wnid a line. None: all classes if there are 200, and of 1,000 those that
    FedAlign took: a choice of 200 sorted wnids without replacement by numpy's old generator, seed 1993.

    images_per_class: how many training images of each class to keep; None keeps all. FedAlign drew 500 in the order
    of a file system, which nobody can repeat: these 500 are others.
    """

    root: Annotated[str | None, Doc("folder with the files; null: in `~/.cache/fedskew`")] = None
    class_list: Annotated[str | None, Doc("text file with one wnid a line"), Neutral(None, "is FedAlign's 200")] = None
    images_per_class: Annotated[
        int | None, Ge(1), Doc("training images of each class to keep"), Neutral(None, "keeps all")
    ] = 500
    size: Annotated[int, Ge(1), Doc("cut out the centre, of this many pixels a side")] = 224

    def folder(self, download: bool = False) -> Path:
        archive = (
            "ILSVRC2012 from https://image-net.org (the validation images sorted into a folder for each class) or "
            "what FedAlign's gen_imagenet_subset.py wrote"
        )
        return find_unpacked("imagenet200", self.root, (), ("train", "val"), archive)

    def read(self) -> Dataset:
        root = self.folder()
        wnids = self._wnids(root / "train")
        train = self._kept(list_classes(root / "train", wnids, "ILSVRC2012"), wnids)
        test = list_classes(root / "val", wnids, "ILSVRC2012")
        splits = [train.decoded(self, "train", self.size, crop=True), test.decoded(self, "test", self.size, crop=True)]
        return assembled("imagenet200", wnids, splits, IMAGENET_MEAN_STD)

    def _wnids(self, train: Path) -> tuple[str, ...]:
        if self.class_list is not None:
            return tuple(sorted(set(_lines(expanded(self.class_list, "data.class_list")))))
        present = [folder.name for folder in _folders(train)]
        if len(present) == 200:
            return tuple(present)
        if len(present) == 1000:
            return fedalign_classes(tuple(present))
        raise DataError(
            f"{train}: has {len(present)} classes, but must have 1,000 (of which 200 are taken) or 200; unpack "
            "ILSVRC2012 again, or name the classes with data.class_list"
        )

    def _kept(self, listing: Listing, wnids: tuple[str, ...]) -> Listing:
        """``images_per_class`` of each class, drawn by class."""
        count = self.images_per_class
        if count is None:
            return listing
        sizes = np.bincount(listing.labels)
        least = int(sizes.argmin())
        require(
            count <= sizes[least],
            "data.images_per_class",
            count,
            f"is more than the {sizes[least]} training images of class {wnids[least]}",
            f"unpack ILSVRC2012 again or set data.images_per_class={sizes[least]}",
        )
        kept = []
        for label in range(len(wnids)):
            rng = numpy_generator(0, f"imagenet200/{wnids[label]}")  # a class has the same images in any list
            kept.append(np.sort(rng.choice(np.flatnonzero(listing.labels == label), count, replace=False)))
        rows = np.concatenate(kept)
        return Listing([listing.files[row] for row in rows], listing.labels[rows])


def fedalign_classes(wnids: tuple[str, ...]) -> tuple[str, ...]:
    """Return FedAlign's 200 of ImageNet's 1,000 ``wnids``, sorted (Mendieta et al. 2022, gen_imagenet_subset.py)."""
    legacy = np.random.RandomState(1993)  # numpy's old generator, whose draws are frozen
    return tuple(sorted(legacy.choice(np.asarray(wnids), 200, replace=False).tolist()))
