"""MNIST's family, in idx files, and the sample of Fashion-MNIST that ships with the package.

Papers augment none of them: a flip would change digits and letters (``local.augment`` is none by default).
"""

from __future__ import annotations

import json
import string
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa

from engine.base import parquet
from engine.base.declared import Doc
from engine.base.errors import DataError
from engine.data.samples.dataset import Dataset, Source, Split, assembled
from engine.data.sources.finding import cache_folder, find
from engine.data.sources.formats import read_idx

EMBEDDED = Path(__file__).parents[1] / "embedded" / "fashion_mnist_sample.parquet"
DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # of the Debian package dataset-fashion-mnist

FASHION_MNIST_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
FASHION_MNIST_MEAN_STD = ((0.2860,), (0.3530,))  # of the 60,000 training images
MNIST_MEAN_STD = ((0.1307,), (0.3081,))  # of the 60,000 training images
EMNIST_CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)


@dataclass(frozen=True, kw_only=True)
class FashionMnistSample(Source):
    """The default: 10,000 + 2,000 images of Fashion-MNIST that ship with the package, 28x28 grey."""

    def folder(self, download: bool = False) -> Path:
        if not EMBEDDED.exists():
            raise DataError(f"{EMBEDDED}: is missing; install the package again")
        return EMBEDDED.parent

    def read(self) -> Dataset:
        try:
            table = parquet.read(EMBEDDED)
            shape = json.loads(table.schema.metadata[b"shape"])
            classes = tuple(json.loads(table.schema.metadata[b"classes"]))
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{EMBEDDED}: cannot be read ({error}); install the package again") from None
        pixels = table["image"].combine_chunks()
        images = np.frombuffer(pixels.buffers()[1], dtype=np.uint8).reshape(-1, *shape)
        labels = table["label"].to_numpy().astype(np.int64)
        train = table["split"].to_numpy() == "train"
        splits = [Split(images[rows], labels[rows]) for rows in (train, ~train)]
        return assembled("fashion_mnist_sample", classes, splits, FASHION_MNIST_MEAN_STD)


@dataclass(frozen=True, kw_only=True)
class FashionMnist(Source):
    """Fashion-MNIST (Xiao et al. 2017), 60,000 + 10,000 images, 28x28 grey.

    root: a folder with the four idx files, plain or .gz, or one that torchvision's FashionMNIST wrote. None:
    the Debian package's folder, else the cache folder, else a download into the cache folder.
    """

    downloads = True

    root: Annotated[str | None, Doc("folder with the files; null: in `~/.cache/fedskew`")] = None

    def folder(self, download: bool = False) -> Path:
        return find(
            "fashion_mnist",
            self.root,
            [DEBIAN_FASHION_MNIST, cache_folder()],
            lambda root: _idx_folder(root, _MNIST, ("FashionMNIST/raw", "raw")),
            _idx_names(_MNIST),
            "apt install dataset-fashion-mnist, give their folder as data.root, or use "
            "data.name=fashion_mnist_sample, which needs no download",
            _download_fashion_mnist if download else None,
        )

    def read(self) -> Dataset:
        folder = self.folder(download=True)
        splits = [_idx_split(folder, prefix, FASHION_MNIST_CLASSES) for prefix in _MNIST]
        return assembled("fashion_mnist", FASHION_MNIST_CLASSES, splits, FASHION_MNIST_MEAN_STD)


@dataclass(frozen=True, kw_only=True)
class Mnist(Source):
    """MNIST (LeCun et al. 1998), 60,000 + 10,000 images, 28x28 grey.

    root: a folder with the four idx files, plain or .gz, or one that torchvision's MNIST wrote. None: ``mnist``
    in the cache folder.
    """

    root: Annotated[str | None, Doc("folder with the files; null: in `~/.cache/fedskew`")] = None

    def folder(self, download: bool = False) -> Path:
        place = cache_folder() / "mnist"
        return find(
            "mnist",
            self.root,
            [place],
            lambda root: _idx_folder(root, _MNIST, ("MNIST/raw", "raw")),
            _idx_names(_MNIST),
            "download the four .gz files from https://ossci-datasets.s3.amazonaws.com/mnist/ and give their "
            f"folder as data.root (or put them into {place})",
        )

    def read(self) -> Dataset:
        folder = self.folder()
        classes = tuple(string.digits)
        splits = [_idx_split(folder, prefix, classes) for prefix in _MNIST]
        return assembled("mnist", classes, splits, MNIST_MEAN_STD)


@dataclass(frozen=True, kw_only=True)
class Emnist(Source):
    """EMNIST by class (Cohen et al. 2017), 697,932 + 116,323 images of digits and letters, 28x28 grey.

    62 classes: 0 to 9, A to Z, a to z. The files hold every image transposed; here images stand upright. The
    mean and std are computed.

    root: a folder with emnist-byclass-train-images-idx3-ubyte and its three companions, plain or .gz (``gzip/`` of
    the official gzip.zip), or one that torchvision's EMNIST wrote. None: ``emnist`` in the cache folder.
    """

    root: Annotated[str | None, Doc("folder with the files; null: in `~/.cache/fedskew`")] = None

    def folder(self, download: bool = False) -> Path:
        place = cache_folder() / "emnist"
        return find(
            "emnist",
            self.root,
            [place],
            lambda root: _idx_folder(root, _EMNIST, ("gzip", "EMNIST/raw", "EMNIST/raw/gzip", "raw")),
            _idx_names(_EMNIST),
            "download https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip, unpack it and give its folder as "
            f"data.root (or put it into {place})",
        )

    def read(self) -> Dataset:
        folder = self.folder()
        splits = [_idx_split(folder, prefix, EMNIST_CLASSES, transposed=True) for prefix in _EMNIST]
        return assembled("emnist", EMNIST_CLASSES, splits, None)


_MNIST = ("train", "t10k")  # how the names of the idx files of both splits begin
_EMNIST = ("emnist-byclass-train", "emnist-byclass-test")


def _idx_file(folder: Path, prefix: str, kind: str) -> Path:
    plain = folder / f"{prefix}-{kind}-ubyte"
    return plain if plain.exists() else plain.with_name(f"{plain.name}.gz")


def _idx_folder(root: Path, prefixes: tuple[str, str], below: tuple[str, ...]) -> Path | None:
    """``root``, or what is ``below`` it, if it has all four idx files."""
    files = [(prefix, kind) for prefix in prefixes for kind in ("images-idx3", "labels-idx1")]
    folders = (root, *(root / sub for sub in below))
    return next((folder for folder in folders if all(_idx_file(folder, *file).exists() for file in files)), None)


def _idx_names(prefixes: tuple[str, str]) -> str:
    train, test = prefixes
    of_train = f"{train}-images-idx3-ubyte[.gz], {train}-labels-idx1-ubyte[.gz]"
    return f"the idx files {of_train}, {test}-images-... and {test}-labels-..."


def _idx_split(folder: Path, prefix: str, classes: tuple[str, ...], transposed: bool = False) -> Split:
    files = _idx_file(folder, prefix, "images-idx3"), _idx_file(folder, prefix, "labels-idx1")
    images, labels = read_idx(files[0], dims=3), read_idx(files[1], dims=1)
    if len(images) != len(labels):
        raise DataError(f"{files[1]}: has {len(labels)} labels for {len(images)} images; download both files again")
    if len(labels) and labels.max() >= len(classes):
        rule = f"has the label {labels.max()}, which is not below {len(classes)}"
        raise DataError(f"{files[1]}: {rule}; download it again")
    if transposed:
        images = np.ascontiguousarray(images.transpose(0, 2, 1))
    return Split(images[:, None], labels.astype(np.int64))


def _download_fashion_mnist(folder: Path) -> None:
    from engine.data.sources.torchvision_compat import torchvision  # takes a second, and most data need no download

    torchvision.datasets.FashionMNIST(str(folder), download=True)
