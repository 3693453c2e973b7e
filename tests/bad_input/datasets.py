"""Data sets: fields, places, and broken files of each format."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.bad_input.case import Case, run
from tests.support.small_images import encode

GREY = encode(np.zeros((4, 4), np.uint8))
RED = encode(np.zeros((4, 4, 3), np.uint8))
LARGE = encode(np.zeros((6, 6), np.uint8))
FLOAT = encode(np.zeros((4, 4), np.float32), "tiff")
# A PNG of 100,000 by 100,000 pixels in 60 bytes: its header alone.
HUGE = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", 100_000, 100_000, 8, 0, 0, 0, 0) + bytes(28)


def idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


IMAGES, LABELS = np.zeros((6, 28, 28), np.uint8), np.arange(6, dtype=np.uint8)
IDX = {
    f"data/{prefix}-{kind}-ubyte.gz": gzip.compress(idx(values))
    for prefix in ("train", "t10k")
    for kind, values in (("images-idx3", IMAGES), ("labels-idx1", LABELS))
}
TRAIN_IMAGES, TRAIN_LABELS = "data/train-images-idx3-ubyte.gz", "data/train-labels-idx1-ubyte.gz"


def parquet(**columns: Any) -> bytes:
    content = io.BytesIO()
    pq.write_table(pa.table(columns), content)
    return content.getvalue()


PATH = {"bytes": None, "path": "1.png"}
TWO_LABELS = {"a_label": [0], "b_label": [0]}
TOKENS, LONG = "data.token_column=ids", "data.sequence_length=1000000000000"
ROWS: dict[str, Any] = {"image": [GREY] * 4, "label": [0, 1, 0, 1]}
CIFAR = {"data": np.zeros((4, 3072), np.uint8), "labels": [0, 1, 2, 3]}
OWN = ("data.root=data",)


class _Code:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("owned"),)


def of(name: str, data: str, files: dict[str, Any], *words: str) -> Case:
    """``fedskew run data.name=... data.root=data`` where ``files`` lie."""
    return Case(name, ("run", f"data.name={data}", *OWN, *words), files, loads=True)


def mnist(name: str, **changed: Any) -> Case:
    return of(name, "mnist", IDX | {changed.pop("file", TRAIN_IMAGES): changed.pop("content")})


def tree(name: str, files: dict[str, Any], *words: str) -> Case:
    base = {f"data/{split}/{kind}/1.png": GREY for split in ("train", "test") for kind in ("cat", "dog")}
    return of(name, "imagefolder", base | files, *words)


def tables(name: str, train: bytes, *words: str) -> Case:
    return of(name, "parquet", {"data/train.parquet": train, "data/test.parquet": parquet(**ROWS)}, *words)


def tokens(name: str, ids: list[int]) -> Case:
    table = parquet(ids=[ids], label=[0])
    return of(name, "parquet", {f"data/{split}.parquet": table for split in ("train", "test")}, TOKENS)


def batches(name: str, content: Any) -> Case:
    pickled = content if isinstance(content, bytes) else pickle.dumps(content)
    names = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
    files = {f"data/{one}": pickle.dumps(CIFAR) for one in names} | {"data/data_batch_1": pickled}
    return of(name, "cifar10", files)


def coco(name: str, text: str | bytes | None = None, **changed: Any) -> Case:
    whole = {
        "images": [{"id": 1, "file_name": "train_val2019/1.jpg"}],
        "annotations": [{"image_id": 1, "category_id": 3}],
        "categories": [{"id": 3, "name": "a bird"}],
    }
    files = {f"data/{split}2019.json": json.dumps(whole) for split in ("train", "val")}
    files["data/train2019.json"] = json.dumps(whole | changed) if text is None else text
    files["data/train_val2019/1.jpg"] = RED
    return of(name, "inaturalist2019", files)


def _empty_archive(member: str = "readme") -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo(member))
    return content.getvalue()


FIELDS = [
    run("data set is unknown", "data.name=svhn"),
    run("no sample is kept", "data.train_samples=0"),
    run("more samples than there are", "data.train_samples=10001", loads=True),
    run("a number of samples in words", "data.test_samples=few"),
    run("a tail that rises", "data.imbalance=0.5"),
    run("a tail that ends without a row", "data.imbalance=1001", loads=True),
    run("a folder where none is asked for", "data.root=x"),
    run("own images without a folder", "data.name=imagefolder"),
    run("a folder that is a number", "data.name=imagefolder data.root=3"),
    run(
        "splits that are no mapping",
        "data.name=parquet data.root=x data.splits=valid",
    ),
    run(
        "a split that leads out",
        ("data.name=imagefolder", "data.root=x", "data.splits={test: ../etc}"),
    ),
    run("one split for both", ("data.name=parquet", "data.root=x", "data.splits={test: train}")),
    run("all rows to test on", "data.name=parquet data.root=x data.test_fraction=1"),
    run("all rows to choose by", "data.validation=1"),
    run("a part of all test rows", "data.test_part=1"),
    run("rows without a token", f"data.name=parquet data.root=x {TOKENS} data.sequence_length=0"),
    run("tokens and images", f"data.name=parquet data.root=x {TOKENS} data.image_column=a"),
    run("a vocabulary of padding alone", "model.name=dan model.vocabulary=1"),
    run("embeddings of nothing", "model.name=dan model.dimension=0"),
    run("mixed token ids", "model.name=dan algorithm.name=naivemix"),
    run("token ids from pixels", "model.name=dan", loads=True),
    run("images of no size", "data.name=imagefolder data.root=x data.size=0"),
    run("users beyond memory", "data.name=synthetic data.users=1000000000000", loads=True),
    run("pictures that are moved and are none", "data.name=synthetic local.augment=crop_flip", loads=True),
    run("no user", "data.name=synthetic data.users=0"),
    run("features beyond float32", "data.name=synthetic data.a=1e308"),
    run("features are NaN", "data.name=synthetic data.b=.nan"),
    run("validation for nothing known", "data.name=cinic10 data.valid=all"),
    run("a folder that is not there", "data.name=mnist data.root=gone", loads=True),
    run("nobody's home", "data.name=mnist data.root=~nobody-at-all/x", loads=True),
    run("a folder with NUL", ("data.name=mnist", 'data.root="a\\0b"'), loads=True),
    run("a folder of 300 letters", f"data.name=mnist data.root={'a' * 300}", loads=True),
    run("a data set that is not here", "data.name=omniglot", loads=True),
    Case(
        "a file for a folder",
        ("run", "data.name=mnist", *OWN),
        {"data": b""},
        loads=True,
    ),
    Case(
        "an empty folder",
        ("run", "data.name=fashion_mnist", *OWN),
        {"data/readme": b""},
        loads=True,
    ),
]

IDX_FILES = [
    mnist("truncated gzip", content=IDX[TRAIN_IMAGES][:-9]),
    mnist("no gzip", content=b"no gzip at all"),
    mnist("gzip with a broken checksum", content=IDX[TRAIN_IMAGES][:-8] + bytes(8)),
    mnist("empty idx", content=gzip.compress(b"")),
    mnist("wrong idx magic", content=gzip.compress(b"\0\0\x0d\x03" + bytes(40))),
    mnist("idx of labels for images", content=gzip.compress(idx(LABELS))),
    mnist("idx that ends early", content=gzip.compress(idx(IMAGES)[:-1])),
    mnist("idx that goes on", content=gzip.compress(idx(IMAGES) + b"x")),
    mnist("idx of negative sizes", content=gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12)),
    mnist(
        "idx of 2^93 pixels",
        content=gzip.compress(b"\0\0\x08\x03" + b"\x7f\xff\xff\xff" * 3),
    ),
    mnist(
        "idx of 8 GB in 50 bytes",
        content=gzip.compress(b"\0\0\x08\x03" + struct.pack(">3I", 2_000_000, 64, 64)),
    ),
    mnist("idx without an image", content=gzip.compress(idx(IMAGES[:0]))),
    mnist(
        "a label out of range",
        file=TRAIN_LABELS,
        content=gzip.compress(idx(LABELS + 72)),
    ),
    mnist(
        "fewer labels than images",
        file=TRAIN_LABELS,
        content=gzip.compress(idx(LABELS[:5])),
    ),
    mnist("other sizes in the test", content=gzip.compress(idx(IMAGES[:, :9]))),
]

PICKLES = [
    batches("a pickle that runs code", _Code()),
    batches("a pickle of a list", [1, 2]),
    batches("a truncated pickle", pickle.dumps(CIFAR)[:-30]),
    batches("an empty pickle", b""),
    batches("a batch without labels", {"data": CIFAR["data"]}),
    batches("a batch of floats", CIFAR | {"data": np.zeros((4, 3072))}),
    batches("labels that are texts", CIFAR | {"labels": ["a"] * 4}),
    batches("labels beyond 64 bits", CIFAR | {"labels": [2**70] * 4}),
    batches("labels of several numbers", CIFAR | {"labels": [[1, 2]] * 4}),
    batches("a label that is no class", CIFAR | {"labels": [10] * 4}),
    batches("a negative label", CIFAR | {"labels": [-1] * 4}),
    of("an archive that is none", "cifar100", {"data/cifar-100-python.tar.gz": b"no archive"}),
    of(
        "an archive of other files",
        "cifar100",
        {"data/cifar-100-python.tar.gz": _empty_archive()},
    ),
    of(
        "a folder in place of a file",
        "cifar100",
        {"data/cifar-100-python.tar.gz": _empty_archive("../cifar-100-python/meta")},
    ),
]

TREES = [
    tree("images of two sizes", {"data/train/cat/2.png": LARGE}),
    tree("grey and coloured images", {"data/train/dog/2.png": RED}),
    tree("an image that is none", {"data/train/cat/2.png": b"no image"}),
    tree("a truncated image", {"data/train/cat/2.png": GREY[:45]}),
    tree("an empty image", {"data/train/cat/2.png": b""}),
    tree("a bomb of pixels", {"data/train/cat/2.png": HUGE}),
    tree("pixels of floats", {"data/train/cat/0.tif": FLOAT}),
    tree("a test class of its own", {"data/test/owl/1.png": GREY}),
    tree("images beyond memory", {}, "data.size=1000000"),
    of("no test images", "imagefolder", {"data/train/cat/1.png": GREY}),
    of("folders without images", "imagefolder", {"data/train/cat/a.txt": b""}),
]

PARQUET = [
    tables("a parquet without the column", parquet(label=[1])),
    tables("another column is named", parquet(**ROWS), "data.image_column=picture"),
    tables("labels that are floats", parquet(**ROWS | {"label": [0.5] * 4})),
    tables("labels that are missing", parquet(**ROWS | {"label": [0, 1, None, 1]})),
    tables("negative labels", parquet(**ROWS | {"label": [-1] * 4})),
    tables(
        "labels beyond all classes",
        parquet(**ROWS | {"label": [2**62] * 4}),
    ),
    tables("unsigned labels", parquet(**ROWS | {"label": pa.array([2**64 - 1] * 4, pa.uint64())})),
    tables("images that are numbers", parquet(**ROWS | {"image": [1] * 4})),
    tables("an image that is missing", parquet(**ROWS | {"image": [GREY, None, GREY, GREY]})),
    tables("an image of text", parquet(**ROWS | {"image": [b"x"] * 4})),
    tables("a struct without bytes", parquet(**ROWS | {"image": [{"path": "x"}] * 4})),
    tables("no rows", parquet(image=pa.array([], pa.binary()), label=pa.array([], pa.int64()))),
    tables("a truncated parquet", parquet(**ROWS)[:-20]),
    tables("a column whose name is no text", parquet(**ROWS).replace(b"label", b"la\xf4el")),
    tables("no parquet", b"PAR1 and nothing else"),
    tables("an empty parquet", b""),
    tables("an owner column that is not there", parquet(**ROWS), "data.owner_column=user"),
    of("no test table", "parquet", {"data/train.parquet": parquet(**ROWS)}),
    tables("an image of which only the path is there", parquet(**ROWS | {"image": [PATH] * 4})),
    tables("two columns of labels", parquet(image=[GREY], **TWO_LABELS)),
    tables("two columns of images", parquet(a=[GREY], b=[GREY], label=[0])),
    tables("a feature that is NaN", parquet(x=[0.5, float("nan")], label=[0, 1])),
    tables("a feature that is a text", parquet(x=[0.5], y=["a"], label=[0])),
    tables("features of two lengths", parquet(x=[[0.5, 1.0], [2.0]], label=[0, 1])),
    tables("tokens that nobody asked for", parquet(ids=[[1], [2, 3]], label=[0, 1])),
    tokens("a negative token id", [-1]),
    tokens("a token id beyond float32", [2**24]),
    tokens("a text of 5,000 tokens", [1] * 5000),
    tables("tokens beyond memory", parquet(ids=[[1]], label=[0]), TOKENS, LONG),
    tables("a configuration that is not there", parquet(**ROWS), "data.config=x"),
    tables("test rows twice", parquet(**ROWS), "data.test_fraction=0.5"),
    of(
        "two configurations",
        "parquet",
        {f"data/{config}/{split}-0.parquet": parquet(**ROWS) for config in "ab" for split in ("train", "test")},
    ),
    of(
        "a split that is called otherwise",
        "parquet",
        {f"data/{split}/0000.parquet": parquet(**ROWS) for split in ("train", "valid")},
    ),
    of(
        "the hub's whole cache",
        "parquet",
        {"data/datasets--a--b/snapshots/0/train.parquet": b""},
    ),
    of(
        "a single row, of which one is held out",
        "parquet",
        {"data/train.parquet": parquet(image=[GREY], label=[0])},
        "data.test_fraction=0.5",
    ),
]

ANNOTATIONS = [
    coco("annotations cut off", '{"images": ['),
    coco("annotations 100,000 deep", "[" * 100_000),
    coco("annotations that are a list", "[]"),
    coco("annotations in another encoding", b"\xff\xfe{}"),
    coco("an id that is infinite", images=[{"id": float("inf"), "file_name": "x"}]),
    coco("an id of 5,000 digits", f'{{"images": [{{"id": {"9" * 5000}}}]}}'),
    coco("an image without annotation", annotations=[]),
    coco(
        "a category that is none",
        annotations=[{"image_id": 1, "category_id": 9}],
    ),
    coco("an image that leads out of the folder", images=[{"id": 1, "file_name": "../../etc/passwd"}]),
    coco("an image at a place of its own", images=[{"id": 1, "file_name": "/etc/passwd"}]),
    coco("an image with NUL", images=[{"id": 1, "file_name": "a\0b"}]),
]

CASES = [*FIELDS, *IDX_FILES, *PICKLES, *TREES, *PARQUET, *ANNOTATIONS]
