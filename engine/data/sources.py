"""The data sets by name. Each is a frozen dataclass; ``load()`` reads it once into one array per split."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from engine.data.dataset import AS_IS, Dataset, Source, Split, channel_statistics
from engine.data.formats import (
    ParquetColumns,
    decode_images,
    image_tree,
    read_cifar_batches,
    read_files,
    read_idx,
    read_parquet_images,
)
from engine.errors import DataError, require
from engine.seeds import numpy_generator

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


MeanStd = tuple[tuple[float, ...], tuple[float, ...]]


def _dataset(name: str, classes: tuple[str, ...], splits: list[Split], mean_std: MeanStd | None) -> Dataset:
    """From [train, test]; the mean and std of the training images are computed if they are not known."""
    train, test = splits
    mean, std = mean_std or channel_statistics(train.images)
    return Dataset(name, classes, train, test, mean, std)


def cache_folder() -> Path:
    """Where downloads go: ``$XDG_CACHE_HOME/fedskew``, or ``~/.cache/fedskew``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedskew"


# ------------------------------------------------------------------------------------------- Fashion-MNIST
@dataclass(frozen=True, kw_only=True)
class FashionMnistSample(Source):
    """The default: 10,000 + 2,000 images of Fashion-MNIST that ship with the package, 28x28 grey."""

    def read(self) -> Dataset:
        try:
            table = pq.read_table(EMBEDDED)
            shape = json.loads(table.schema.metadata[b"shape"])
            classes = tuple(json.loads(table.schema.metadata[b"classes"]))
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{EMBEDDED}: cannot be read ({error}); install the package again") from None
        pixels = table["image"].combine_chunks()
        images = np.frombuffer(pixels.buffers()[1], dtype=np.uint8).reshape(-1, *shape)
        labels = table["label"].to_numpy().astype(np.int64)
        train = table["split"].to_numpy() == "train"
        splits = [Split(images[rows], labels[rows]) for rows in (train, ~train)]
        return _dataset("fashion_mnist_sample", classes, splits, FASHION_MNIST_MEAN_STD)


@dataclass(frozen=True, kw_only=True)
class FashionMnist(Source):
    """Fashion-MNIST (Xiao et al. 2017), 60,000 + 10,000 images, 28x28 grey.

    root: a folder with the four idx files, plain or .gz, or one that torchvision's FashionMNIST wrote. None:
    the Debian package's folder, else the cache folder, else a download into the cache folder.
    """

    root: str | None = None

    def read(self) -> Dataset:
        folder = _find(
            "fashion_mnist",
            self.root,
            [DEBIAN_FASHION_MNIST, cache_folder()],
            self._idx_folder,
            _download_fashion_mnist,
            "the idx files train-images-idx3-ubyte[.gz], train-labels-idx1-ubyte[.gz], t10k-images-... and "
            "t10k-labels-...",
            "apt install dataset-fashion-mnist, give their folder as data.root, or use "
            "data.name=fashion_mnist_sample, which needs no download",
        )
        splits = []
        for prefix in ("train", "t10k"):
            images = read_idx(_idx_file(folder, f"{prefix}-images-idx3-ubyte"), dims=3)
            labels = read_idx(_idx_file(folder, f"{prefix}-labels-idx1-ubyte"), dims=1)
            splits.append(Split(images[:, None], labels.astype(np.int64)))
        return _dataset("fashion_mnist", FASHION_MNIST_CLASSES, splits, FASHION_MNIST_MEAN_STD)

    @staticmethod
    def _idx_folder(root: Path) -> Path | None:
        for folder in (root, root / "FashionMNIST" / "raw", root / "raw"):
            names = [f"{p}-{kind}-ubyte" for p in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
            if all(_idx_file(folder, name).exists() for name in names):
                return folder
        return None


def _idx_file(folder: Path, name: str) -> Path:
    plain = folder / name
    return plain if plain.exists() else folder / f"{name}.gz"


def _download_fashion_mnist(folder: Path) -> None:
    from engine.torchvision_compat import torchvision  # takes a second, and most data need no download

    torchvision.datasets.FashionMNIST(str(folder), download=True)


# ------------------------------------------------------------------------------------------------ CIFAR-10
@dataclass(frozen=True, kw_only=True)
class Cifar10(Source):
    """CIFAR-10 (Krizhevsky 2009), 50,000 + 10,000 images, 32x32 RGB.

    root: a folder with torchvision's python batches (or ``cifar-10-batches-py`` with them), with
    train/<class>/*.png and test/<class>/*.png, or with train-*.parquet and test-*.parquet (columns ``img``
    and ``label``). None: the cache folder, else a download into it.
    """

    root: str | None = None

    def read(self) -> Dataset:
        layouts: dict[str, Callable[[Path], Dataset]] = {
            "batches": self._from_batches,
            "parquet": self._from_parquet,
            "tree": self._from_tree,
        }
        folder = _find(
            "cifar10",
            self.root,
            [cache_folder()],
            lambda root: root if self._layout(root) else None,
            _download_cifar10,
            "cifar-10-batches-py (data_batch_1 to 5, test_batch), train-*.parquet and test-*.parquet, or "
            "train/<class>/*.png and test/<class>/*.png",
            "give the folder that holds it as data.root",
        )
        return layouts[self._layout(folder)](folder)

    @staticmethod
    def _batch_folder(root: Path) -> Path | None:
        for folder in (root, root / "cifar-10-batches-py"):
            if (folder / "data_batch_1").exists() and (folder / "test_batch").exists():
                return folder
        return None

    @classmethod
    def _layout(cls, root: Path) -> str:
        if cls._batch_folder(root):
            return "batches"
        if all(_parquet_files(root, split) for split in ("train", "test")):
            return "parquet"
        if all((root / split).is_dir() and image_tree(root / split) for split in ("train", "test")):
            return "tree"
        return ""

    @classmethod
    def _from_batches(cls, root: Path) -> Dataset:
        folder = cls._batch_folder(root) or root
        files = (sorted(folder.glob("data_batch_*")), [folder / "test_batch"])
        splits = [Split(*read_cifar_batches(paths)) for paths in files]
        return _dataset("cifar10", CIFAR10_CLASSES, splits, CIFAR10_MEAN_STD)

    def _from_parquet(self, root: Path) -> Dataset:
        # the mean and std are known, so that a subset need not decode the rest (4 s for all, 0.2 s for 1,000)
        choose = {split: lambda labels, split=split: self.chosen(split, labels) for split in ("train", "test")}
        data = _read_parquet("cifar10", root, "img", "label", mean_std=CIFAR10_MEAN_STD, choose=choose)
        named = data.classes != tuple(str(number) for number in range(len(data.classes)))
        return data if named else dataclasses.replace(data, classes=CIFAR10_CLASSES)

    @staticmethod
    def _from_tree(root: Path) -> Dataset:
        return _read_tree("cifar10", root, mean_std=CIFAR10_MEAN_STD)


def _download_cifar10(folder: Path) -> None:
    from engine.torchvision_compat import torchvision

    # not CIFAR10(download=True): its constructor would unpickle the batches without restriction
    cifar10 = torchvision.datasets.CIFAR10
    from torchvision.datasets.utils import download_and_extract_archive

    download_and_extract_archive(cifar10.url, str(folder), filename=cifar10.filename, md5=cifar10.tgz_md5)


# ---------------------------------------------------------------------------------------- a user's own data
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

    def read(self) -> Dataset:
        return _read_tree("imagefolder", _existing(self.root, "train/<class>/ and test/<class>/"), self.size)


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

    def read(self) -> Dataset:
        root = _existing(self.root, "train-*.parquet and test-*.parquet")
        return _read_parquet("parquet", root, self.image_column, self.label_column, self.owner_column, self.size)


def _parquet_files(root: Path, split: str) -> list[Path]:
    for folder in (root, root / "data"):
        found = sorted({*folder.glob(f"{split}.parquet"), *folder.glob(f"{split}-*.parquet")})
        if found:
            return found
    return []


def _read_parquet(
    name: str,
    root: Path,
    image: str,
    label: str,
    owner: str | None = None,
    size: int | None = None,
    mean_std: MeanStd | None = None,
    choose: Mapping[str, Callable[[np.ndarray], np.ndarray]] | None = None,
) -> Dataset:
    files = {split: _parquet_files(root, split) for split in ("train", "test")}
    for split, paths in files.items():
        if not paths:
            raise DataError(f"data.root={root}: has no {split}-*.parquet (looked there and in data/)")
    train, test = (
        read_parquet_images(paths, image, label, owner, size, (choose or {}).get(split))
        for split, paths in files.items()
    )
    classes, labels = _number_labels(train, test)
    owners = (None, None) if train.owners is None or test.owners is None else _number(train.owners, test.owners)
    splits = [Split(c.images, n, o) for c, n, o in zip((train, test), labels, owners, strict=True)]
    return _dataset(name, classes, splits, mean_std)


def _number_labels(train: ParquetColumns, test: ParquetColumns) -> tuple[tuple[str, ...], tuple[np.ndarray, ...]]:
    """Class names, and the labels of both splits as class numbers."""
    if train.labels.dtype.kind in "iu" and test.labels.dtype.kind in "iu":
        count = int(max(train.labels.max(), test.labels.max())) + 1
        return train.class_names or tuple(map(str, range(count))), (train.labels, test.labels)
    names = np.unique(np.concatenate([train.labels, test.labels]))
    return tuple(map(str, names)), _number(train.labels, test.labels)


def _number(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values of both splits as int64 places in their sorted union, so that one user has one number."""
    _, places = np.unique(np.concatenate([train, test]), return_inverse=True)
    places = places.astype(np.int64)
    return places[: len(train)], places[len(train) :]


def _read_tree(name: str, root: Path, size: int | None = None, mean_std: MeanStd | None = None) -> Dataset:
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
    return _dataset(name, classes, splits, mean_std)


# ----------------------------------------------------------------------------------------------- synthetic
@dataclass(frozen=True, kw_only=True)
class Synthetic(Source):
    """Synthetic(a, b) of FedProx (Li et al. 2020, section 5.1): 60 features, 10 classes, one model per user.

    User k has W_k, c_k ~ N(u_k, 1) with u_k ~ N(0, a), features x ~ N(v_k, S) with v_k ~ N(B_k, 1),
    B_k ~ N(0, b), S diagonal with S_jj = j^-1.2, and labels argmax(W_k x + c_k). As in the authors' code a
    and b are standard deviations. A user has 50 + lognormal(4, 2) samples (rounded down), nine tenths for
    training. Images are float32 [N, 60, 1, 1].

    a: how much the users' models differ. b: how much their features differ. seed: draws the whole data set;
    apart from the seed of the run.
    """

    a: float = 1.0
    b: float = 1.0
    users: int = 30
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("a", "b"):
            value = getattr(self, field)
            require(
                0 <= value < float("inf"),
                field,
                value,
                "must be a number from 0 on",
                f"for example {field}=1",
            )
        require(self.users >= 1, "users", self.users, "must be at least 1", "for example users=30")

    def read(self) -> Dataset:
        parts: tuple[list[np.ndarray], ...] = ([], [], [], [])
        for user in range(self.users):
            x, y = self._user(user)
            cut = int(0.9 * len(y))
            for part, values in zip(parts, (x[:cut], x[cut:], y[:cut], y[cut:]), strict=True):
                part.append(values)
        splits = []
        for images, labels in (parts[0::2], parts[1::2]):
            owners = np.repeat(np.arange(self.users, dtype=np.int64), [len(y) for y in labels])
            splits.append(Split(np.concatenate(images)[:, :, None, None], np.concatenate(labels), owners))
        return _dataset("synthetic", tuple(map(str, range(10))), splits, AS_IS)

    def _user(self, user: int) -> tuple[np.ndarray, np.ndarray]:
        """Features float32 [n, 60] and labels int64 [n] of one user."""
        rng = numpy_generator(self.seed, "synthetic", client=user)
        samples = int(rng.lognormal(4, 2)) + 50
        model_mean, feature_mean = rng.normal(0, self.a), rng.normal(0, self.b)
        weights, offsets = rng.normal(model_mean, 1, (10, 60)), rng.normal(model_mean, 1, 10)
        spread = np.arange(1, 61) ** -0.6  # the square root of the variances j^-1.2
        x = rng.normal(feature_mean, 1, 60) + spread * rng.standard_normal((samples, 60))
        return x.astype(np.float32), np.argmax(x @ weights.T + offsets, axis=1).astype(np.int64)


# ------------------------------------------------------------------------------------------- finding things
def _existing(root: str, wanted: str) -> Path:
    folder = Path(root).expanduser()
    if not folder.is_dir():
        looked = folder.absolute()
        raise DataError(f"data.root={root}: there is no such folder (looked at {looked}); give one that holds {wanted}")
    return folder


def _find(
    name: str,
    root: str | None,
    places: list[Path],
    locate: Callable[[Path], Path | None],
    download: Callable[[Path], None],
    wanted: str,
    repair: str,
) -> Path:
    """The folder of a known data set: below ``root`` if given, else below ``places``, else downloaded.

    locate gives the folder of the data below a folder, None if they are not there. A given root is never
    replaced by another place. The download goes to the last of ``places``.
    """
    if root is not None:
        found = locate(_existing(root, wanted))
        if found is None:
            raise DataError(f"data.root={root}: has no {name}; looked for {wanted} in {Path(root).absolute()}")
        return found
    for place in places:
        found = locate(place)
        if found is not None:
            return found
    found, reason = None, "incomplete"
    try:
        places[-1].mkdir(parents=True, exist_ok=True)
        download(places[-1])
        found = locate(places[-1])
    except (OSError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    if found is None:
        looked = ", ".join(str(place) for place in places)
        raise DataError(f"{name} was not found (looked in {looked}) and its download failed ({reason}); {repair}")
    return found
