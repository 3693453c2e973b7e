"""CIFAR-10 and CIFAR-100, as python batches, parquet files or folders of images.

Papers augment them with ``local.augment=crop_flip``; the default is none.
"""

from __future__ import annotations

import dataclasses
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated

from engine.base.declared import Doc
from engine.base.errors import DataError
from engine.base.opening import regular
from engine.data.samples.dataset import Dataset, MeanStd, Source, Split, assembled
from engine.data.sources.finding import cache_folder, find
from engine.data.sources.formats import image_tree, read_cifar_batches
from engine.data.sources.pickled import read_pickled
from engine.data.sources.user_data import parquet_files, read_parquet, read_tree

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR10_MEAN_STD = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))  # of the 50,000 training images
CIFAR100_MEAN_STD = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))  # likewise


@dataclass(frozen=True, kw_only=True)
class Cifar10(Source):
    """CIFAR-10 (Krizhevsky 2009), 50,000 + 10,000 images, 32x32 RGB.

    root: a folder with torchvision's python batches (or ``cifar-10-batches-py`` with them), with
    train/<class>/*.png and test/<class>/*.png, or with train-*.parquet and test-*.parquet (columns ``img``
    and ``label``). None: the cache folder, else a download into it.
    """

    downloads = True

    root: Annotated[str | None, Doc("folder with the files; null: in `~/.cache/fedskew`")] = None

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

    root: Annotated[str | None, Doc("folder with the files; null: in `~/.cache/fedskew`")] = None

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
            with open(batches, "rb", opener=regular) as file, tarfile.open(fileobj=file) as archive:
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
    """Read parquet files or an image tree; ``classes`` where parquet has numbers and no names."""
    if not all(parquet_files(root, split) for split in ("train", "test")):
        return read_tree(name, root, mean_std=mean_std)
    # the mean and std are known, so that a subset need not decode the rest (4 s for all, 0.2 s for 1,000)
    choose = {split: lambda labels, split=split: source.chosen(split, labels) for split in ("train", "test")}
    data = read_parquet(name, root, "img", label, mean_std=mean_std, choose=choose)
    named = data.classes != tuple(str(number) for number in range(len(data.classes)))
    return data if named or classes is None else dataclasses.replace(data, classes=classes)


def _download_cifar10(folder: Path) -> None:
    from engine.data.sources.torchvision_compat import torchvision

    # not CIFAR10(download=True): its constructor would unpickle the batches without restriction
    cifar10 = torchvision.datasets.CIFAR10
    from torchvision.datasets.utils import download_and_extract_archive

    download_and_extract_archive(cifar10.url, str(folder), filename=cifar10.filename, md5=cifar10.tgz_md5)
