"""MNIST's and CIFAR's families, each from a small copy of its exact layout; what is missing of any data set."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.base.errors import ConfigError, DataError
from engine.data import SOURCES, Cifar100, Emnist, FashionMnist, Mnist
from engine.data.samples.dataset import channel_statistics, stratified
from engine.data.sources import mnist
from tests.support.small_images import encode, write

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch) -> Path:
    """An empty cache folder; no test sees a data set of this machine, nor the network."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setattr(mnist, "DEBIAN_FASHION_MNIST", Path("no/such/folder"))
    monkeypatch.setattr(mnist, "_download_fashion_mnist", lambda folder: None)
    return folder / "fedskew"


# ----------------------------------------------------------------------------------- missing data
NO_DOWNLOAD = {
    "mnist": "ossci-datasets.s3.amazonaws.com/mnist",
    "emnist": "biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
    "cifar100": "cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    "cinic10": "datashare.ed.ac.uk",
    "omniglot": "github.com/brendenlake/omniglot",
    "tiny_imagenet": "cs231n.stanford.edu/tiny-imagenet-200.zip",
    "imagenet200": "image-net.org",
    "inaturalist2019": "visipedia/inat_comp/tree/master/2019",
    "inaturalist_user_120k": "federated_vision_datasets",
}


@pytest.mark.parametrize("name", NO_DOWNLOAD)
def test_a_missing_set_says_what_to_download_and_where_to_put_it(tmp_path, cache, name):
    """Kills: a FileNotFoundError; falling back to another place when a root is given."""
    with pytest.raises(DataError) as nowhere:
        SOURCES.build({"name": name}).load()
    with pytest.raises(DataError) as empty:
        SOURCES.build({"name": name, "root": str(tmp_path)}).load()
    with pytest.raises(DataError, match=r"data\.root=\S*gone: there is no such folder"):
        SOURCES.build({"name": name, "root": str(tmp_path / "gone")}).load()
    assert f"data.root={tmp_path}: has no {name}; looked for" in str(empty.value)
    for message in (str(nowhere.value), str(empty.value)):
        assert NO_DOWNLOAD[name] in message and str(cache / name) in message and "data.root" in message
        assert "\n" not in message


# ------------------------------------------------------------------------- MNIST and EMNIST (idx)
def write_idx(folder: Path, prefixes: tuple[str, str], zipped: bool, classes: int = 10) -> dict[str, np.ndarray]:
    written = {}
    for prefix, count in zip(prefixes, (2 * classes, classes), strict=True):
        images = RNG.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % classes).astype(np.uint8)
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            content = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()
            name = f"{prefix}-{kind}-ubyte" + (".gz" if zipped else "")
            write(folder / name, gzip.compress(content) if zipped else content)
            written[f"{prefix}-{kind}"] = array
    return written


MNIST = ("train", "t10k")
EMNIST = ("emnist-byclass-train", "emnist-byclass-test")


@pytest.mark.parametrize(("below", "zipped"), [("", True), ("MNIST/raw", False), ("raw", True)])
def test_mnist(tmp_path, below, zipped):
    """Kills: rows and columns swapped, Fashion-MNIST's names or constants."""
    written = write_idx(tmp_path / below, MNIST, zipped)
    data = Mnist(root=str(tmp_path)).load()
    assert np.array_equal(data.train.images[:, 0], written["train-images-idx3"])
    assert np.array_equal(data.test.labels, written["t10k-labels-idx1"])
    assert (data.classes, data.mean, data.std) == (tuple("0123456789"), (0.1307,), (0.3081,))


def test_mnist_in_the_cache_is_not_taken_for_fashion_mnist(cache):
    """The files have the same names. Kills: one place for both."""
    write_idx(cache / "mnist", MNIST, zipped=True)
    assert Mnist().load().name == "mnist"
    with pytest.raises(DataError, match="fashion_mnist was not found"):
        FashionMnist().load()


@pytest.mark.parametrize("below", ["", "gzip", "EMNIST/raw"])
def test_emnist_stands_upright(tmp_path, below):
    """The files hold every image transposed. Kills: images on their side; letters before digits."""
    written = write_idx(tmp_path / below, EMNIST, zipped=below == "gzip", classes=62)
    data = Emnist(root=str(tmp_path)).load()
    stored = written["emnist-byclass-train-images-idx3"]
    assert np.array_equal(data.train.images[3, 0], stored[3].T)
    assert not np.array_equal(data.train.images[3, 0], stored[3])
    assert data.train.images.flags.c_contiguous
    assert [data.classes[label] for label in (0, 9, 10, 35, 36, 61)] == ["0", "9", "A", "Z", "a", "z"]
    assert data.test.labels.tolist() == list(range(62))
    assert (data.mean, data.std) == channel_statistics(data.train.images)


@pytest.mark.parametrize(("source", "prefixes", "classes"), [(Mnist, MNIST, 10), (Emnist, EMNIST, 62)])
def test_idx_files_that_do_not_fit_together_are_named(tmp_path, source, prefixes, classes):
    """Kills: labels of another file; letters read as digits."""
    write_idx(tmp_path, prefixes, zipped=False, classes=classes)
    path = tmp_path / f"{prefixes[1]}-labels-idx1-ubyte"
    content = path.read_bytes()
    path.write_bytes(content[:4] + struct.pack(">I", classes - 1) + content[8:-1])
    with pytest.raises(DataError, match=rf"{path.name}: has {classes - 1} labels for {classes} images; download"):
        source(root=str(tmp_path)).load()
    path.write_bytes(content[:-1] + bytes([classes]))
    with pytest.raises(
        DataError, match=rf"{path.name}: has the label {classes}, which is not below {classes}; download"
    ):
        source(root=str(tmp_path)).load()


# ---------------------------------------------------------------------------------------- CIFAR-100
NAMES = ["apple", "aquarium_fish", "baby"]
PIXELS = RNG.integers(0, 256, (9, 3, 32, 32), dtype=np.uint8)
FINE = [2, 0, 1, 2, 0, 1, 2, 0, 1]


def cifar100(**changes: object) -> dict[str, bytes]:
    """The three files of cifar-100-python; the first six rows are for training."""
    flat_pixels = PIXELS.reshape(9, -1)
    rows = {"train": slice(0, 6), "test": slice(6, 9)}
    content: dict[str, Any] = {
        name: {
            "filenames": ["x.png"] * len(FINE[part]),
            "batch_label": f"{name}ing batch 1 of 1",
            "fine_labels": FINE[part],
            "coarse_labels": [0] * len(FINE[part]),
            "data": flat_pixels[part],
        }
        for name, part in rows.items()
    }
    content["meta"] = {"fine_label_names": NAMES, "coarse_label_names": ["things"]}
    return {name: pickle.dumps(value, protocol=2) for name, value in {**content, **changes}.items()}


def write_cifar100(root: Path, layout: str, files: dict[str, bytes]) -> None:
    if layout != "archive":
        for name, content in files.items():
            write(root / layout / name, content)
        return
    with tarfile.open(root / "cifar-100-python.tar.gz", "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"cifar-100-python/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize("layout", ["", "cifar-100-python", "archive"])
def test_cifar100_from_python_batches(tmp_path, layout):
    """Kills: coarse labels, HWC for CHW, test in train, names by order of the labels."""
    write_cifar100(tmp_path, layout, cifar100())
    data = Cifar100(root=str(tmp_path)).load()
    assert data.classes == tuple(NAMES)
    assert np.array_equal(data.train.images, PIXELS[:6])
    assert np.array_equal(data.test.images, PIXELS[6:])
    assert data.train.labels.tolist() == FINE[:6] and data.test.labels.tolist() == FINE[6:]
    assert data.mean == (0.5071, 0.4865, 0.4409)


@pytest.mark.parametrize("names", [True, False])
def test_cifar100_from_hugging_face_parquet(tmp_path, names):
    """Kills: the column of CIFAR-10, coarse labels, decoding what a subset leaves out."""
    for split, rows in (("train", range(6)), ("test", range(6, 9))):
        images = [{"bytes": encode(PIXELS[row].transpose(1, 2, 0)), "path": None} for row in rows]
        table = pa.table({"img": images, "fine_label": [FINE[r] for r in rows], "coarse_label": [0] * len(rows)})
        features = {"fine_label": {"names": NAMES}, "coarse_label": {"names": ["things"]}}
        if names:
            table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        pq.write_table(table, tmp_path / f"{split}-00000-of-00001.parquet")
    data = Cifar100(root=str(tmp_path), train_samples=3).load()
    rows = stratified(np.array(FINE[:6]), 3, "subset/train")
    assert np.array_equal(data.train.images, PIXELS[rows])
    assert data.test.labels.tolist() == FINE[6:]
    assert data.classes == (tuple(NAMES) if names else ("0", "1", "2"))


class Attack:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("layout", ["cifar-100-python", "archive"])
@pytest.mark.parametrize("file", ["train", "meta"])
def test_a_cifar100_pickle_that_runs_code_is_refused(tmp_path, layout, file):
    """Kills: pickle.load of meta, or of what comes from an archive. The code must not have run."""
    write_cifar100(tmp_path, layout, cifar100(**{file: {"data": Attack(tmp_path / "owned")}}))
    with pytest.raises(DataError, match=rf"cifar-100-python/{file}: not a readable CIFAR batch .*mkdir"):
        Cifar100(root=str(tmp_path)).load()
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"meta": {"coarse_label_names": []}}, "meta: has no list `fine_label_names`; download"),
        ({"train": {"data": PIXELS.reshape(9, -1), "labels": FINE}}, "train: not a CIFAR batch .*`fine_labels`"),
        ({"test": {"data": PIXELS.reshape(9, -1), "fine_labels": FINE[:5]}}, "test: has 9 images but 5 labels"),
        ({"test": {"data": PIXELS.reshape(9, -1), "fine_labels": [*FINE[:8], 3]}}, "label is 3, but there are 3"),
    ],
)
def test_cifar100_files_that_do_not_fit_together_are_named(tmp_path, changes, message):
    """Kills: a KeyError; images and labels of different numbers."""
    write_cifar100(tmp_path, "archive", cifar100(**changes))
    with pytest.raises(DataError, match=message):
        Cifar100(root=str(tmp_path)).load()


@pytest.mark.parametrize("damage", [lambda content: content[: len(content) // 2], lambda content: b"no archive"])
def test_a_broken_cifar100_archive_is_named(tmp_path, damage):
    """Kills: an EOFError, a ReadError."""
    write_cifar100(tmp_path, "archive", cifar100())
    path = tmp_path / "cifar-100-python.tar.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"cifar-100-python\.tar\.gz.*: not a readable .*; download it again"):
        Cifar100(root=str(tmp_path)).load()


def test_a_cifar100_archive_without_a_member_is_named(tmp_path):
    """Kills: a KeyError of tarfile."""
    files = cifar100()
    write_cifar100(tmp_path, "archive", {name: files[name] for name in ("train", "meta")})
    with pytest.raises(DataError, match="cifar-100-python/test: not a readable CIFAR batch"):
        Cifar100(root=str(tmp_path)).load()


# ------------------------------------------------------------------------------------------- fields
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "imagenet200", "size": 0}, r"data\.size=0: must be at least 1; for example data.size=224"),
        ({"name": "imagenet200", "images_per_class": 0}, r"data\.images_per_class=0: must be at least 1; null"),
        ({"name": "inaturalist2019", "size": -1}, r"data\.size=-1: must be at least 1"),
        ({"name": "inaturalist_user_120k", "size": 0}, r"data\.size=0: must be at least 1"),
        ({"name": "cinic10", "valid": "all"}, r"data\.valid=all: must be 'unused', 'train' or 'test'"),
        ({"name": "omniglot", "split": "random"}, r"data\.split=random: must be 'drawers' or 'images'"),
    ],
)
def test_a_bad_field_is_named(fields, message):
    """Kills: a missing check."""
    with pytest.raises(ConfigError, match=message):
        SOURCES.build(fields)
