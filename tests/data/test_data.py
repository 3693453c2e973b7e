"""Data sets: each layout is read right, made here in small; missing or broken data are one sentence."""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import pickle
import struct
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from engine.base.errors import ConfigError, DataError
from engine.data import (
    SOURCES,
    Cifar10,
    Dataset,
    FashionMnist,
    FashionMnistSample,
    ImageFolder,
    Parquet,
    Source,
    Split,
    Synthetic,
)
from engine.data.samples.batches import Rows
from engine.data.samples.dataset import channel_statistics, disjoint_part, stratified
from engine.data.sources import cifar, mnist
from engine.data.sources.finding import cache_folder
from engine.data.sources.pickled import read_pickled

RNG = np.random.default_rng(0)
RGB = RNG.integers(0, 256, (12, 3, 32, 32), dtype=np.uint8)
LABELS = np.arange(12) % 3


@pytest.fixture(autouse=True)
def nothing_installed(tmp_path_factory, monkeypatch):
    """No test sees a data set of this machine, nor the network."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(mnist, "DEBIAN_FASHION_MNIST", Path("no/such/folder"))

    def offline(folder: Path) -> None:
        raise OSError("no network")

    monkeypatch.setattr(mnist, "_download_fashion_mnist", offline)
    monkeypatch.setattr(cifar, "_download_cifar10", offline)


def encode(image: np.ndarray, kind: str = "png") -> bytes:
    """[C, H, W] -> file content."""
    buffer = io.BytesIO()
    Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)).save(buffer, kind)
    return buffer.getvalue()


def write_idx(folder: Path, zipped: bool, train: int = 20, test: int = 10) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for prefix, count in (("train", train), ("t10k", test)):
        arrays = {
            "images-idx3": RNG.integers(0, 256, (count, 28, 28), dtype=np.uint8),
            "labels-idx1": (np.arange(count) % 10).astype(np.uint8),
        }
        for kind, array in arrays.items():
            content = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()
            name = f"{prefix}-{kind}-ubyte" + (".gz" if zipped else "")
            (folder / name).write_bytes(gzip.compress(content) if zipped else content)
            written[f"{prefix}-{kind}"] = array
    return written


def write_batches(folder: Path) -> None:
    folder.mkdir(parents=True)
    flat = RGB.reshape(12, -1)
    rows = {f"data_batch_{n + 1}": slice(2 * n, 2 * n + 2) for n in range(5)} | {"test_batch": slice(10, 12)}
    for name, part in rows.items():
        batch = {
            "data": flat[part],
            "labels": LABELS[part].tolist(),
            "batch_label": name,
            "filenames": ["a", "b"],
        }
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))


def write_tree(root: Path, suffix: str = "png", names: tuple[str, ...] = ("cat", "dog", "owl")) -> None:
    for split, rows in (("train", range(9)), ("test", range(9, 12))):
        for row in rows:
            folder = root / split / names[LABELS[row]]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{row:02}.{suffix}").write_bytes(encode(RGB[row]))


def write_parquet(path: Path, rows: slice, flat: bool = False, names: bool = True, **columns: list) -> None:
    content = [encode(image) for image in RGB[rows]]
    image = content if flat else [{"bytes": c, "path": None} for c in content]
    table = pa.table({"img.bytes" if flat else "img": image, "label": LABELS[rows], **columns})
    if names:
        feature = {"_type": "ClassLabel", "names": ["ape", "bee", "cow"]}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": {"label": feature}}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=2)


# ---------------------------------------------------------------------- the embedded sample
def test_the_embedded_sample_is_complete_and_stratified():
    """Kills: a sample in class order, train rows in test, uneven classes."""
    data = FashionMnistSample().load()
    assert data.shape == (1, 28, 28)
    assert (len(data.train), len(data.test), len(data.classes)) == (10_000, 2_000, 10)
    assert data.train.images.dtype == np.uint8
    assert np.bincount(data.train.labels).tolist() == [1000] * 10
    assert np.bincount(data.test.labels).tolist() == [200] * 10
    assert np.abs(np.diff(data.train.labels)).mean() > 2  # mixed, not sorted by class
    computed = channel_statistics(data.train.images)
    assert computed[0][0] == pytest.approx(data.mean[0], abs=5e-3)
    assert computed[1][0] == pytest.approx(data.std[0], abs=5e-3)
    # trousers are tall and narrow, bags fill the frame: labels belong to the images
    wide = (data.train.images[:, 0, :, 2] > 0).mean(axis=1)
    assert wide[data.train.labels == 8].mean() > 5 * wide[data.train.labels == 1].mean()


def test_the_embedded_sample_is_small_and_licensed():
    """Kills: shipping without the licence."""
    assert mnist.EMBEDDED.stat().st_size < 6e6
    licence = (mnist.EMBEDDED.parent / "LICENSE.fashion-mnist").read_text()
    assert "MIT License" in licence
    assert "Zalando SE" in licence


# ---------------------------------------------------------------------------- Fashion-MNIST
@pytest.mark.parametrize(
    ("below", "zipped"), [(".", True), (".", False), ("FashionMNIST/raw", False), ("FashionMNIST/raw", True)]
)
def test_fashion_mnist_from_a_given_root(tmp_path, below, zipped):
    """Kills: rows and columns swapped, a header read little-endian, one of the layouts."""
    written = write_idx(tmp_path / below, zipped)
    data = FashionMnist(root=str(tmp_path)).load()
    assert np.array_equal(data.train.images[:, 0], written["train-images-idx3"])
    assert np.array_equal(data.test.labels, written["t10k-labels-idx1"])
    assert data.train.images.flags.c_contiguous
    assert data.classes[9] == "Ankle boot"


def test_fashion_mnist_prefers_the_system_then_the_cache_then_a_download(tmp_path, monkeypatch):
    """Kills: another order of places, a download beside data that are there."""
    monkeypatch.setattr(mnist, "_download_fashion_mnist", lambda folder: write_idx(folder, True, train=30))
    assert len(FashionMnist().load().train) == 30
    monkeypatch.setattr(mnist, "_download_fashion_mnist", None)
    assert len(FashionMnist().load().train) == 30  # now from the cache
    write_idx(tmp_path, True, train=40)
    monkeypatch.setattr(mnist, "DEBIAN_FASHION_MNIST", tmp_path)
    assert len(FashionMnist().load().train) == 40


def test_a_missing_data_set_says_where_it_looked_and_how_to_get_it():
    """Kills: a traceback of the download."""
    with pytest.raises(DataError) as caught:
        FashionMnist().load()
    message = str(caught.value)
    for part in (
        "no/such/folder",
        str(cache_folder()),
        "no network",
        "dataset-fashion-mnist",
        "data.root",
    ):
        assert part in message
    assert "\n" not in message


@pytest.mark.parametrize("name", ["fashion_mnist", "cifar10", "imagefolder", "parquet"])
def test_a_missing_or_empty_root_is_named(tmp_path, name):
    """Kills: falling back to another place when a root is given, a FileNotFoundError."""
    with pytest.raises(DataError, match=r"data\.root=\S*nowhere: there is no such folder \(looked at .*; give one"):
        SOURCES.build({"name": name, "root": str(tmp_path / "nowhere")}).load()
    with pytest.raises(DataError, match=rf"data\.root={tmp_path}: has no .*looked"):
        SOURCES.build({"name": name, "root": str(tmp_path)}).load()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[: len(content) // 2], "cannot be read|its length is not"),
        (lambda content: b"\x1f\x8b" + b"junk" * 9, "cannot be read"),
        (
            lambda content: gzip.compress(b"\0\0\x0d\3" + bytes(12)),
            "not an idx file of uint8 with 3 dimensions",
        ),
        (
            lambda content: gzip.compress(gzip.decompress(content)[:-5]),
            "its length is not what its header says",
        ),
        (
            lambda content: gzip.compress(gzip.decompress(content) + b"x"),
            "its length is not what its header says",
        ),
    ],
)
def test_a_broken_idx_file_is_named(tmp_path, damage, message):
    """Kills: trusting the header, a zlib traceback."""
    write_idx(tmp_path, zipped=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=rf"{path.name}: .*({message})"):
        FashionMnist(root=str(tmp_path)).load()


# --------------------------------------------------------------------------------- CIFAR-10
@pytest.mark.parametrize("below", [".", "cifar-10-batches-py"])
def test_cifar10_from_python_batches(tmp_path, below):
    """Kills: HWC for CHW, batches out of order, test rows in train."""
    write_batches(tmp_path / "root" / below if below != "." else tmp_path / "root")
    data = Cifar10(root=str(tmp_path / "root")).load()
    assert np.array_equal(data.train.images, RGB[:10])
    assert np.array_equal(data.train.labels, LABELS[:10])
    assert np.array_equal(data.test.images, RGB[10:])
    assert data.classes[:2] == ("airplane", "automobile")


def test_cifar10_batches_of_python_2_are_read(tmp_path):
    """The originals name numpy.core and hold byte strings. Kills: knowing numpy's new module path alone."""
    content = pickle.dumps({"data": RGB[:1].reshape(1, -1)}, protocol=2).replace(b"numpy._core", b"numpy.core")
    path = tmp_path / "batch"
    path.write_bytes(content)
    assert b"numpy.core.multiarray" in content
    assert np.array_equal(read_pickled(path)["data"].reshape(1, 3, 32, 32), RGB[:1])


class Attack:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_runs_code_is_refused(tmp_path, protocol):
    """Kills: pickle.load. The code must not have run."""
    (tmp_path / "batch").write_bytes(pickle.dumps({"data": Attack(tmp_path / "owned")}, protocol=protocol))
    with pytest.raises(DataError, match=r"batch: not a readable CIFAR batch .*mkdir"):
        read_pickled(tmp_path / "batch")
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("content", [b"", b"junk", pickle.dumps([1]), pickle.dumps({"data": [1], "labels": [1]})])
def test_a_broken_batch_is_named(tmp_path, content):
    """Kills: an UnpicklingError or KeyError with a traceback."""
    write_batches(tmp_path / "b")
    (tmp_path / "b" / "data_batch_3").write_bytes(content)
    with pytest.raises(DataError, match="data_batch_3: "):
        Cifar10(root=str(tmp_path / "b")).load()


def test_cifar10_from_an_image_tree(tmp_path):
    """Kills: classes by order of the file system."""
    write_tree(tmp_path)
    data = Cifar10(root=str(tmp_path)).load()
    assert data.classes == ("cat", "dog", "owl")
    assert np.array_equal(data.train.images, RGB[[0, 3, 6, 1, 4, 7, 2, 5, 8]])
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("below", ["", "data"])
def test_cifar10_from_hugging_face_parquet(tmp_path, flat, below):
    """Kills: parts out of order, a struct column only, class names not taken from the metadata."""
    folder = tmp_path / below
    write_parquet(folder / "train-00000-of-00002.parquet", slice(0, 5), flat)
    write_parquet(folder / "train-00001-of-00002.parquet", slice(5, 9), flat)
    write_parquet(folder / "test-00000-of-00001.parquet", slice(9, 12), flat)
    data = Cifar10(root=str(tmp_path)).load()
    assert data.classes == ("ape", "bee", "cow")
    assert np.array_equal(data.train.images, RGB[:9])
    assert np.array_equal(data.train.labels, LABELS[:9])
    assert np.array_equal(data.test.images, RGB[9:])
    assert data.train.images.flags.c_contiguous


def test_cifar10_parquet_without_names_has_the_known_ones(tmp_path):
    """Kills: classes "0", "1", ... for CIFAR-10."""
    for split in ("train", "test"):
        write_parquet(tmp_path / f"{split}-0.parquet", slice(0, 12), names=False)
    assert Cifar10(root=str(tmp_path)).load().classes == cifar.CIFAR10_CLASSES


# ----------------------------------------------------------------------- a user's own data
def test_parquet_with_owners_and_named_labels(tmp_path):
    """Kills: owners numbered apart in train and test, so that one user has two numbers."""
    for split, rows, users in (("train", slice(0, 9), "cab"), ("test", slice(9, 12), "bcc")):
        count = len(RGB[rows])
        words = pa.array([["x", "y", "z"][label] for label in LABELS[rows]]).dictionary_encode()
        write_parquet(tmp_path / f"{split}.parquet", rows, names=False, user=list((users * 3)[:count]), word=words)
    data = Parquet(root=str(tmp_path), image_column="img", label_column="word", owner_column="user").load()
    assert data.classes == ("x", "y", "z")
    assert data.train.owners is not None
    assert data.test.owners is not None
    assert data.train.owners.tolist() == [2, 0, 1] * 3
    assert data.test.owners.tolist() == [1, 2, 2]
    assert data.mean == channel_statistics(RGB[:9])[0]


def parquet_pair(root: Path, names: bool = True, flat: bool = False, **columns: list) -> None:
    for split in ("train", "test"):
        write_parquet(root / f"{split}.parquet", slice(0, 6), flat, names, **columns)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image_column": "picture"}, "has no column 'picture'; it has img, label"),
        ({"image_column": "label"}, "column 'label' must hold encoded images"),
        ({"image_column": "img.pixels"}, "column 'img' has no field"),
        (
            {"image_column": "img", "label_column": "weight"},
            "weight: has 1 different real numbers in .*train.parquet .0.5., and fedskew does no regression; bin them",
        ),
        ({"image_column": "img", "label_column": "gaps"}, "column 'gaps' has 1 empty values"),
        ({"image_column": "img", "label_column": "minus"}, "labels must not be negative"),
    ],
)
def test_a_wrong_column_is_named(tmp_path, fields, message):
    """Kills: a KeyError, NaN labels cast to numbers."""
    extra = {"weight": [0.5] * 6, "gaps": [None, 0, 0, 0, 0, 0], "minus": [-1] * 6}
    parquet_pair(tmp_path, names=False, **extra)
    with pytest.raises((ConfigError, DataError), match=message):
        Parquet(root=str(tmp_path), **fields).load()


@pytest.mark.parametrize("damage", [b"", b"PAR1 but not really PAR1", None])
def test_a_corrupt_parquet_file_is_named(tmp_path, damage):
    """Kills: an ArrowInvalid traceback, for a wrong file and for a truncated one."""
    parquet_pair(tmp_path)
    path = tmp_path / "train.parquet"
    path.write_bytes(path.read_bytes()[:-40] if damage is None else damage)
    with pytest.raises(DataError, match=r"train\.parquet: not a readable parquet file \(.*\); get it again"):
        Parquet(root=str(tmp_path), image_column="img").load()


def test_damaged_pages_are_named(tmp_path):
    """Kills: errors of a later read than the footer's."""
    parquet_pair(tmp_path)
    path = tmp_path / "train.parquet"
    content = bytearray(path.read_bytes())
    content[4:400] = b"\xff" * 396
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"train\.parquet"):
        Parquet(root=str(tmp_path), image_column="img").load()


def test_texts_that_are_none_are_named(tmp_path):
    """Kills: a UnicodeDecodeError traceback for a column of texts that are not UTF-8; found by the fuzzer."""
    offsets, texts = pa.array(range(7), pa.int32()).buffers()[1], pa.py_buffer(b"ab\x9ddef")
    word = pa.StringArray.from_buffers(6, offsets, texts)
    parquet_pair(tmp_path, names=False, word=word)
    with pytest.raises(DataError, match=r"train\.parquet: not a readable parquet file \(.*Invalid UTF8"):
        Parquet(root=str(tmp_path), image_column="img", label_column="word").load()


def test_imagefolder_numbers_classes_by_name_and_computes_statistics(tmp_path):
    """Kills: constants of another data set, statistics over the test images."""
    write_tree(tmp_path, names=("b", "a", "c"))
    data = ImageFolder(root=str(tmp_path)).load()
    assert data.classes == ("a", "b", "c")
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    scaled = RGB[:9] / 255
    assert data.mean == pytest.approx(scaled.mean(axis=(0, 2, 3)))
    assert data.std == pytest.approx(scaled.std(axis=(0, 2, 3)))


def test_images_of_two_sizes_are_refused_or_resized(tmp_path):
    """Kills: cropping or resizing without being asked."""
    write_tree(tmp_path)
    (tmp_path / "train" / "dog" / "01.png").write_bytes(encode(RGB[0][:, :20, :24]))
    with pytest.raises(DataError, match=r"00\.png is 32x32 and .*01\.png is 24x20; set data\.size"):
        ImageFolder(root=str(tmp_path)).load()
    assert ImageFolder(root=str(tmp_path), size=16).load().shape == (3, 16, 16)


def test_grey_among_coloured_images_is_refused(tmp_path):
    """Kills: broadcasting a grey image over three channels unasked; a refusal that names no key; a key that is not
    obeyed, or in the digest of who does not set it."""
    write_tree(tmp_path)
    (tmp_path / "train" / "owl" / "02.png").write_bytes(encode(RGB[2][:1]))
    with pytest.raises(ConfigError, match=r"colour=None: .*00\.png is RGB, .*02\.png is L; set data\.colour=rgb or"):
        ImageFolder(root=str(tmp_path)).load()
    colours: dict[Any, int] = {"rgb": 3, "grey": 1}
    for colour, channels in colours.items():
        data = ImageFolder(root=str(tmp_path), colour=colour).load()
        assert data.shape == (channels, *RGB.shape[2:])
    assert ImageFolder(root="x", colour=None).identity({"root": "x", "colour": None}) == {"root": "x"}


@pytest.mark.parametrize("content", [b"", b"not an image", encode(RGB[0])[:200]])
def test_a_broken_image_is_named(tmp_path, content):
    """Kills: a traceback from Pillow."""
    write_tree(tmp_path)
    (tmp_path / "test" / "dog" / "10.png").write_bytes(content)
    with pytest.raises(DataError, match=r"10\.png: not a readable image"):
        ImageFolder(root=str(tmp_path)).load()


def test_a_test_class_without_training_images_is_refused(tmp_path):
    """Kills: numbering the test classes on their own."""
    write_tree(tmp_path)
    (tmp_path / "test" / "dog").rename(tmp_path / "test" / "dodo")
    with pytest.raises(DataError, match="class 'dodo' is not among the training classes"):
        ImageFolder(root=str(tmp_path)).load()


# -------------------------------------------------------------------------------- synthetic
def test_synthetic_follows_li_et_al():
    """Kills: variances for standard deviations in S, labels not of the user's model, sizes without the 50."""
    data = Synthetic(users=10, seed=1).load()
    assert data.train.images.shape[1:] == (60, 1, 1)
    assert data.train.images.dtype == np.float32
    assert data.train.owners is not None
    assert data.test.owners is not None
    train, test = np.bincount(data.train.owners), np.bincount(data.test.owners)
    assert len(train) == len(test) == 10
    assert np.array_equal(train, np.floor(0.9 * (train + test)))
    assert (train + test).min() >= 50
    user = int(np.argmax(train))
    variances = data.train.images[data.train.owners == user, :, 0, 0].var(axis=0)
    expected = np.arange(1, 61) ** -1.2
    assert np.allclose(variances, expected, rtol=6 * np.sqrt(2 / train[user]))
    assert (data.mean, data.std) == ((0.0,), (1.0,))


def test_synthetic_users_do_not_depend_on_one_another():
    """Kills: one stream of random numbers for all users."""
    few, many = Synthetic(users=2).load().train, Synthetic(users=4).load().train
    assert np.array_equal(few.images, many.images[: len(few)])
    other = Synthetic(users=2, seed=1).load().train
    assert other.images.shape != few.images.shape or not np.array_equal(other.images, few.images)


def test_synthetic_users_differ_with_b():
    """Kills: b without effect: the mean feature of a user has the spread of N(0, b) beyond that of v."""
    spread = []
    for b in (0.0, 5.0):
        train = Synthetic(b=b, users=20).load().train
        assert train.owners is not None
        spread.append(np.std([train.images[train.owners == user].mean() for user in range(20)]))
    assert spread[1] > 10 * spread[0]


# ----------------------------------------------------------------- subsets and their fields
def test_a_subset_is_stratified_fixed_and_in_order():
    """Kills: the first n rows, a subset in class order, a draw that changes from load to load."""
    data = FashionMnistSample(train_samples=105, test_samples=20).load()
    counts = np.bincount(data.train.labels)
    assert counts.sum() == 105
    assert set(counts) == {10, 11}
    assert np.bincount(data.test.labels).tolist() == [2] * 10
    again = FashionMnistSample(train_samples=105, test_samples=20).load()
    assert np.array_equal(again.train.images, data.train.images)
    rows = stratified(np.arange(1000) % 7, 100, "x")
    assert np.all(np.diff(rows) > 0)
    assert not np.array_equal(rows, np.arange(100))


def test_parts_of_the_test_rows_are_disjoint():
    """Kills: two parts with a row in common; other shares of classes; a part beyond the last; a part of all rows; a
    field that moves the digest of every experiment."""
    labels = np.repeat(np.arange(3), (40, 20, 24))  # 10, 5 and 6 of 21: four parts
    parts = [disjoint_part(labels, 21, number) for number in range(5)]
    assert sorted(np.concatenate(parts[:4])) == list(range(84))
    assert all(np.bincount(labels[rows]).tolist() == [10, 5, 6] for rows in parts)
    assert np.array_equal(parts[4], parts[0]) and np.all(np.diff(parts[0]) > 0)
    source = FashionMnistSample(test_samples=100, test_part=1)
    whole = FashionMnistSample().load().test
    assert np.array_equal(source.load().test.labels, whole.labels[disjoint_part(whole.labels, 100, 1)])
    assert source.chosen("test", np.zeros(100, np.int64)).tolist() == list(range(100))  # of what a reader has reduced
    with pytest.raises(ConfigError, match="test_part"):
        FashionMnistSample(test_part=1)
    with pytest.raises(ConfigError, match="leaves room for one part alone"):
        FashionMnistSample(test_samples=1_200, test_part=1).load()
    written = {"name": "fashion_mnist_sample", "test_part": None}
    assert FashionMnistSample().identity(written) == {"name": "fashion_mnist_sample"}


def test_training_rows_to_choose_by_take_the_place_of_test_rows():
    """Kills: a row that is trained on and scored on; a test image that is scored on; other shares of classes; a field
    that moves the digest of every experiment."""
    whole = FashionMnistSample(train_samples=100, test_samples=20).load()
    data = FashionMnistSample(train_samples=100, test_samples=20, validation=0.3).load()
    images = [image.tobytes() for split in (data.train, data.test) for image in split.images]
    assert (len(data.train), len(data.test)) == (70, 30)
    assert sorted(images) == sorted(image.tobytes() for image in whole.train.images)
    assert np.bincount(data.test.labels).tolist() == [3] * 10
    assert "test rows: 30 of 100 training rows, by data.validation" in data.notes
    written = {"name": "fashion_mnist_sample", "validation": None}
    assert FashionMnistSample().identity(written) == {"name": "fashion_mnist_sample"}
    assert FashionMnistSample(validation=0.3).identity({**written, "validation": 0.3})["validation"] == 0.3


def test_pixels_stay_as_they_are_without_normalise():
    """Between 0 and 1, whatever the precision. Kills: 0 to 255; the data's mean or std still at work; labels moved."""
    plain = FashionMnistSample(normalise=False, train_samples=40, test_samples=20).load()
    usual = FashionMnistSample(train_samples=40, test_samples=20).load()
    assert (plain.mean, plain.std) == ((0.0,), (1.0,)) and usual.mean == mnist.FASHION_MNIST_MEAN_STD[0]
    assert plain.fingerprint != usual.fingerprint
    for data, mean, std in ((plain, 0.0, 1.0), (usual, usual.mean[0], usual.std[0])):
        x, y = Rows(data, data.test, torch.device("cpu"), torch.float64).batch(torch.arange(20))
        np.testing.assert_allclose(x.numpy(), (data.test.images / 255 - mean) / std, rtol=0, atol=1e-12)
        assert np.array_equal(y.numpy(), usual.test.labels)


def test_normalise_leaves_features_alone_and_every_source_has_it():
    """Kills: features divided by 255; a source that loads in a way of its own."""
    for name in SOURCES:
        assert SOURCES[name].load is Source.load and "normalise" in SOURCES.fields(name)
    plain, usual = Synthetic(users=2, normalise=False).load(), Synthetic(users=2).load()
    assert plain.fingerprint == usual.fingerprint
    x, _ = Rows(plain, plain.test, torch.device("cpu"), torch.float32).batch(torch.arange(4))
    assert np.array_equal(x.numpy(), usual.test.images[:4])


def test_a_subset_of_parquet_is_that_of_the_whole(tmp_path):
    """Cifar10 decodes the chosen rows only. Kills: rows counted for each file, or each batch, on its own."""
    for part, rows in enumerate((slice(0, 4), slice(4, 9))):
        write_parquet(tmp_path / f"train-{part}.parquet", rows)
    write_parquet(tmp_path / "test-0.parquet", slice(9, 12))
    whole = Cifar10(root=str(tmp_path)).load().train
    part = Cifar10(root=str(tmp_path), train_samples=6).load().train
    rows = stratified(whole.labels, 6, "subset/train")
    assert np.array_equal(part.images, whole.images[rows])
    assert np.array_equal(part.labels, whole.labels[rows])


def test_a_subset_keeps_owners():
    """Kills: images and owners that no longer belong together."""
    whole, part = Synthetic(users=5).load().train, Synthetic(users=5, train_samples=50).load().train
    assert whole.owners is not None
    assert part.owners is not None
    place = {image.tobytes(): owner for image, owner in zip(whole.images, whole.owners, strict=True)}
    assert [place[image.tobytes()] for image in part.images] == part.owners.tolist()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"name": "fashion_mnist_sample", "train_samples": 0},
            "data.train_samples=0: must be at least 1; null keeps all",
        ),
        ({"name": "synthetic", "users": 0}, "data.users=0: must be at least 1"),
        ({"name": "synthetic", "a": -1}, "data.a=-1: must be at least 0 and at most"),
        ({"name": "imagefolder", "root": "x", "size": 0}, "data.size=0: must be at least 1"),
        (
            {"name": "fashion-mnist"},
            "data.name=fashion-mnist: is not a known data; did you mean 'fashion_mnist'",
        ),
    ],
)
def test_a_bad_field_is_named(fields, message):
    """Kills: a missing check."""
    with pytest.raises(ConfigError, match=message):
        SOURCES.build(fields)


def test_a_subset_larger_than_the_data_is_refused():
    """Kills: taking all in silence."""
    with pytest.raises(ConfigError, match=r"data\.test_samples=2001: is more than the 2000 test samples"):
        FashionMnistSample(test_samples=2001).load()


# ------------------------------------------------------------------------------- validation
def good(**changes: object) -> Split:
    arrays = {"images": np.zeros((4, 1, 2, 2), np.uint8), "labels": np.arange(4), "owners": None}
    return Split(**{**arrays, **changes})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": np.zeros((4, 2, 2), np.uint8)}, r"shape \[N, C, H, W\]"),
        ({"images": np.zeros((4, 1, 2, 2))}, "uint8 or float32, not float64"),
        ({"images": np.zeros((2, 1, 2, 4), np.uint8).transpose(3, 1, 2, 0)}, "C-contiguous"),
        ({"images": np.zeros((0, 1, 2, 2), np.uint8)}, "there must be images"),
        ({"labels": np.arange(3)}, r"labels must have the shape \(4,\)"),
        ({"labels": np.arange(4, dtype=np.int32)}, "labels must be int64"),
        ({"owners": np.arange(4) - 1}, "owners must not be negative"),
    ],
)
def test_a_split_whose_arrays_do_not_fit_is_refused(changes, message):
    """Kills: a missing check."""
    with pytest.raises(DataError, match=message):
        good(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": ("a", "b", "c")}, "label is 3, but there are 3 classes"),
        ({"test": good(images=np.zeros((4, 1, 2, 3), np.uint8))}, "differ in size"),
        ({"test": good(images=np.zeros((4, 1, 2, 2), np.float32))}, "differ in type"),
        ({"mean": (0.0, 0.0)}, "mean has 2 values for 1 channels"),
        ({"std": (0.0,)}, "std must be above 0"),
    ],
)
def test_a_data_set_whose_parts_do_not_fit_is_refused(changes, message):
    """Kills: a missing check."""
    parts = {
        "name": "x",
        "classes": tuple("abcd"),
        "train": good(),
        "test": good(),
        "mean": (0.0,),
        "std": (1.0,),
    }
    with pytest.raises(DataError, match=message):
        Dataset(**{**parts, **changes})


@pytest.mark.parametrize("channels", [1, 3])
def test_statistics_are_those_of_exact_sums(channels):
    """Kills: a mean whose last bit, and with it the fingerprint, is that of a BLAS or of an order of summation."""
    images = np.random.default_rng(channels).integers(0, 256, (100, channels, 8, 8), dtype=np.uint8)
    mean, std = channel_statistics(images)
    for channel in range(channels):
        pixels = [Fraction(int(value), 255) for value in images[:, channel].ravel()]
        exact = sum(pixels) / len(pixels)
        spread = sum((pixel - exact) ** 2 for pixel in pixels) / len(pixels)
        assert mean[channel] == float(exact)
        assert std[channel] == pytest.approx(math.sqrt(spread), rel=3e-16)
    backwards = np.ascontiguousarray(images[::-1, :, ::-1])
    assert channel_statistics(backwards) == (mean, std)


def test_statistics_of_one_value_can_be_divided_by():
    """Kills: a standard deviation of 0."""
    assert channel_statistics(np.full((3, 1, 2, 2), 51, np.uint8)) == ((0.2,), (1.0,))


# ------------------------------------------------------------------------------ torchvision
def test_torchvision_can_be_imported_on_any_build():
    """Kills: declaring after the import, or where the operators are there."""
    from engine.data.sources.torchvision_compat import torchvision

    assert sys.modules["torchvision"] is torchvision
    assert torchvision.datasets.CIFAR10.url.startswith("https://")
    assert torchvision.transforms is not None
