"""The small data sets by name, MNIST's family (idx files) and CIFAR's (python batches).

Each is a frozen dataclass; ``load()`` reads it once into one array per split. What papers augment is told by
``local.augment``, which is none by default: crop_flip is usual for CIFAR; a flip would change digits and letters.
"""

from __future__ import annotations

import dataclasses
import json
import string
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa

from engine.base import parquet
from engine.base.errors import DataError
from engine.data.dataset import Dataset, MeanStd, Source, Split, assembled
from engine.data.finding import cache_folder, find
from engine.data.formats import image_tree, read_cifar_batches, read_idx
from engine.data.pickled import read_pickled
from engine.data.user_data import parquet_files, read_parquet, read_tree

EMBEDDED = Path(__file__).parent / "embedded" / "fashion_mnist_sample.parquet"
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

CIFAR10_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
CIFAR10_MEAN_STD = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))  # of the 50,000 training images
CIFAR100_MEAN_STD = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))  # likewise
MNIST_MEAN_STD = ((0.1307,), (0.3081,))  # of the 60,000 training images
EMNIST_CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)


# ------------------------------------------------------------------------------------------- Fashion-MNIST
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

    root: str | None = None

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

    root: str | None = None

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

    root: str | None = None

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
    return (
        f"the idx files {train}-images-idx3-ubyte[.gz], {train}-labels-idx1-ubyte[.gz], {test}-images-... and "
        f"{test}-labels-..."
    )


def _idx_split(folder: Path, prefix: str, classes: tuple[str, ...], transposed: bool = False) -> Split:
    files = _idx_file(folder, prefix, "images-idx3"), _idx_file(folder, prefix, "labels-idx1")
    images, labels = read_idx(files[0], dims=3), read_idx(files[1], dims=1)
    if len(images) != len(labels):
        raise DataError(f"{files[1]}: has {len(labels)} labels for {len(images)} images; download both files again")
    if len(labels) and labels.max() >= len(classes):
        raise DataError(
            f"{files[1]}: has the label {labels.max()}, which is not below {len(classes)}; download it again"
        )
    if transposed:
        images = np.ascontiguousarray(images.transpose(0, 2, 1))
    return Split(images[:, None], labels.astype(np.int64))


def _download_fashion_mnist(folder: Path) -> None:
    from engine.data.torchvision_compat import torchvision  # takes a second, and most data need no download

    torchvision.datasets.FashionMNIST(str(folder), download=True)


# --------------------------------------------------------------------------------------------------- CIFAR
@dataclass(frozen=True, kw_only=True)
class Cifar10(Source):
    """CIFAR-10 (Krizhevsky 2009), 50,000 + 10,000 images, 32x32 RGB.

    root: a folder with torchvision's python batches (or ``cifar-10-batches-py`` with them), with
    train/<class>/*.png and test/<class>/*.png, or with train-*.parquet and test-*.parquet (columns ``img``
    and ``label``). None: the cache folder, else a download into it.
    """

    downloads = True

    root: str | None = None

    def folder(self, download: bool = False) -> Path:
        return find(
            "cifar10",
            self.root,
            [cache_folder()],
            lambda root: root if self._batch_folder(root) or _has_pictures(root) else None,
            "cifar-10-batches-py (data_batch_1 to 5, test_batch), train-*.parquet and test-*.parquet, or "
            "train/<class>/*.png and test/<class>/*.png",
            "give the folder that holds it as data.root",
            _download_cifar10 if download else None,
        )

    def read(self) -> Dataset:
        folder = self.folder(download=True)
        batches = self._batch_folder(folder)
        if batches is None:
            return _read_pictures(self, "cifar10", folder, "label", CIFAR10_CLASSES, CIFAR10_MEAN_STD)
        files = (sorted(batches.glob("data_batch_*")), [batches / "test_batch"])
        splits = [Split(*read_cifar_batches(paths)) for paths in files]
        return assembled("cifar10", CIFAR10_CLASSES, splits, CIFAR10_MEAN_STD)

    @staticmethod
    def _batch_folder(root: Path) -> Path | None:
        for folder in (root, root / "cifar-10-batches-py"):
            if (folder / "data_batch_1").exists() and (folder / "test_batch").exists():
                return folder
        return None


@dataclass(frozen=True, kw_only=True)
class Cifar100(Source):
    """CIFAR-100 (Krizhevsky 2009) with its 100 fine labels, 50,000 + 10,000 images, 32x32 RGB.

    root: a folder with cifar-100-python.tar.gz, with ``cifar-100-python`` (files train, test and meta) or those
    files, with train/<class>/*.png and test/<class>/*.png, or with train-*.parquet and test-*.parquet (columns
    ``img`` and ``fine_label``). None: ``cifar100`` in the cache folder.
    """

    root: str | None = None

    def folder(self, download: bool = False) -> Path:
        place = cache_folder() / "cifar100"
        return find(
            "cifar100",
            self.root,
            [place],
            lambda root: root if self._batch_folder(root) or _has_pictures(root) else None,
            "cifar-100-python.tar.gz, cifar-100-python (train, test, meta), train-*.parquet and test-*.parquet, or "
            "train/<class>/*.png and test/<class>/*.png",
            "download https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz and give its folder as data.root "
            f"(or put it into {place})",
        )

    def read(self) -> Dataset:
        folder = self.folder()
        batches = self._batch_folder(folder)
        if batches is None:
            return _read_pictures(self, "cifar100", folder, "fine_label", None, CIFAR100_MEAN_STD)
        if batches.suffix != ".gz":
            return self._from_batches(batches, None)
        try:
            with tarfile.open(batches) as archive:
                return self._from_batches(batches / "cifar-100-python", lambda path: _member(archive, path))
        except (OSError, tarfile.TarError) as error:
            reason = str(error).splitlines()[0]
            raise DataError(f"{batches}: not a readable archive ({reason}); download it again") from None

    @staticmethod
    def _batch_folder(root: Path) -> Path | None:
        """The folder of the batches, or the archive."""
        for folder in (root, root / "cifar-100-python"):
            if all((folder / name).is_file() for name in ("train", "test", "meta")):
                return folder
        archive = root / "cifar-100-python.tar.gz"
        return archive if archive.is_file() else None

    @staticmethod
    def _from_batches(folder: Path, opened: Callable[[Path], IO[bytes]] | None) -> Dataset:
        meta = read_pickled(folder / "meta", opened).get("fine_label_names")
        if not isinstance(meta, list) or not all(isinstance(name, str) for name in meta):
            raise DataError(f"{folder / 'meta'}: has no list `fine_label_names`; download the archive again")
        splits = [Split(*read_cifar_batches([folder / name], "fine_labels", opened)) for name in ("train", "test")]
        return assembled("cifar100", tuple(meta), splits, CIFAR100_MEAN_STD)


def _member(archive: tarfile.TarFile, path: Path) -> IO[bytes]:
    file = archive.extractfile(f"{path.parent.name}/{path.name}")
    if file is None:
        raise tarfile.ReadError("a folder where a file should be")
    return file


def _has_pictures(root: Path) -> bool:
    splits = ("train", "test")
    has_trees = all((root / split).is_dir() and image_tree(root / split) for split in splits)
    return has_trees or all(parquet_files(root, split) for split in splits)


def _read_pictures(
    source: Source, name: str, root: Path, label: str, classes: tuple[str, ...] | None, mean_std: MeanStd
) -> Dataset:
    """From parquet files or an image tree; ``classes`` where parquet has numbers and no names."""
    if not all(parquet_files(root, split) for split in ("train", "test")):
        return read_tree(name, root, mean_std=mean_std)
    # the mean and std are known, so that a subset need not decode the rest (4 s for all, 0.2 s for 1,000)
    choose = {split: lambda labels, split=split: source.chosen(split, labels) for split in ("train", "test")}
    data = read_parquet(name, root, "img", label, mean_std=mean_std, choose=choose)
    named = data.classes != tuple(str(number) for number in range(len(data.classes)))
    return data if named or classes is None else dataclasses.replace(data, classes=classes)


def _download_cifar10(folder: Path) -> None:
    from engine.data.torchvision_compat import torchvision

    # not CIFAR10(download=True): its constructor would unpickle the batches without restriction
    cifar10 = torchvision.datasets.CIFAR10
    from torchvision.datasets.utils import download_and_extract_archive

    download_and_extract_archive(cifar10.url, str(folder), filename=cifar10.filename, md5=cifar10.tgz_md5)
