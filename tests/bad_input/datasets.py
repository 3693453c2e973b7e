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


def of(name: str, data: str, message: str, files: dict[str, Any], *words: str) -> Case:
    """``fedskew run data.name=... data.root=data`` where ``files`` lie."""
    return Case(name, ("run", f"data.name={data}", *OWN, *words), message, files, loads=True)


def mnist(name: str, message: str, **changed: Any) -> Case:
    return of(name, "mnist", message, IDX | {changed.pop("file", TRAIN_IMAGES): changed.pop("content")})


def tree(name: str, message: str, files: dict[str, Any], *words: str) -> Case:
    base = {f"data/{split}/{kind}/1.png": GREY for split in ("train", "test") for kind in ("cat", "dog")}
    return of(name, "imagefolder", message, base | files, *words)


def tables(name: str, message: str, train: bytes, *words: str) -> Case:
    return of(name, "parquet", message, {"data/train.parquet": train, "data/test.parquet": parquet(**ROWS)}, *words)


def tokens(name: str, message: str, ids: list[int]) -> Case:
    table = parquet(ids=[ids], label=[0])
    return of(name, "parquet", message, {f"data/{split}.parquet": table for split in ("train", "test")}, TOKENS)


def batches(name: str, message: str, content: Any) -> Case:
    pickled = content if isinstance(content, bytes) else pickle.dumps(content)
    names = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
    files = {f"data/{one}": pickle.dumps(CIFAR) for one in names} | {"data/data_batch_1": pickled}
    return of(name, "cifar10", message, files)


def coco(name: str, message: str, text: str | bytes | None = None, **changed: Any) -> Case:
    whole = {
        "images": [{"id": 1, "file_name": "train_val2019/1.jpg"}],
        "annotations": [{"image_id": 1, "category_id": 3}],
        "categories": [{"id": 3, "name": "a bird"}],
    }
    files = {f"data/{split}2019.json": json.dumps(whole) for split in ("train", "val")}
    files["data/train2019.json"] = json.dumps(whole | changed) if text is None else text
    files["data/train_val2019/1.jpg"] = RED
    return of(name, "inaturalist2019", message, files)


def _empty_archive(member: str = "readme") -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo(member))
    return content.getvalue()


FIELDS = [
    run("data set is unknown", "data.name=svhn", "data.name=svhn: is not a known data"),
    run("no sample is kept", "data.train_samples=0", "data.train_samples=0: must be at least 1"),
    run("more samples than there are", "data.train_samples=10001", "is more than the 10000 train samples", loads=True),
    run("a number of samples in words", "data.test_samples=few", "data.test_samples=few: must be a valid integer"),
    run("a folder where none is asked for", "data.root=x", "data.root=x: is not a field of data"),
    run("own images without a folder", "data.name=imagefolder", "data.root=None: is required"),
    run("a folder that is a number", "data.name=imagefolder data.root=3", "data.root=3: must be a valid string"),
    run(
        "splits that are no mapping",
        "data.name=parquet data.root=x data.splits=valid",
        "data.splits=valid: must be a v",
    ),
    run(
        "a split that leads out",
        ("data.name=imagefolder", "data.root=x", "data.splits={test: ../etc}"),
        "must name splits of the data",
    ),
    run(
        "one split for both", ("data.name=parquet", "data.root=x", "data.splits={test: train}"), "takes one split for b"
    ),
    run(
        "all rows to test on", "data.name=parquet data.root=x data.test_fraction=1", "data.test_fraction=1.0: must be a"
    ),
    run(
        "rows without a token", f"data.name=parquet data.root=x {TOKENS} data.sequence_length=0", "must be at least 1 t"
    ),
    run(
        "tokens and images", f"data.name=parquet data.root=x {TOKENS} data.image_column=a", "cannot be set beside data."
    ),
    run("a vocabulary of padding alone", "model.name=dan model.vocabulary=1", "model.vocabulary=1: must be at least 2"),
    run("embeddings of nothing", "model.name=dan model.dimension=0", "model.dimension=0: must be at least 1"),
    run("mixed token ids", "model.name=dan algorithm.name=naivemix", "algorithm.name=naivemix: mixes rows"),
    run("token ids from pixels", "model.name=dan", "model.name=dan: takes token ids, and the data are p", loads=True),
    run("images of no size", "data.name=imagefolder data.root=x data.size=0", "data.size=0: must be at least 1 pixel"),
    run(
        "users beyond memory", "data.name=synthetic data.users=1000000000000", "data.users=1000000000000: m", loads=True
    ),
    run("no user", "data.name=synthetic data.users=0", "data.users=0: must be at least 1"),
    run("features beyond float32", "data.name=synthetic data.a=1e308", "data.a=1e+308: must be a number from 0"),
    run("features are NaN", "data.name=synthetic data.b=.nan", "data.b=nan: must be a number from 0"),
    run("validation for nothing known", "data.name=cinic10 data.valid=all", "data.valid=all: must be 'unused'"),
    run("a folder that is not there", "data.name=mnist data.root=gone", "data.root=gone: there is no such", loads=True),
    run("nobody's home", "data.name=mnist data.root=~nobody-at-all/x", "names no folder (Could not det", loads=True),
    run("a folder with NUL", ("data.name=mnist", 'data.root="a\\0b"'), r"data.root=a\x00b: there is no", loads=True),
    run("a folder of 300 letters", f"data.name=mnist data.root={'a' * 300}", "there is no such folder", loads=True),
    run("a data set that is not here", "data.name=omniglot", "omniglot was not found (looked in", loads=True),
    Case(
        "a file for a folder",
        ("run", "data.name=mnist", *OWN),
        "data.root=data: there is no such",
        {"data": b""},
        loads=True,
    ),
    Case(
        "an empty folder",
        ("run", "data.name=fashion_mnist", *OWN),
        "data.root=data: has no fashion_mnist; looked",
        {"data/readme": b""},
        loads=True,
    ),
]

IDX_FILES = [
    mnist("truncated gzip", "ended before the end-of-stream marker", content=IDX[TRAIN_IMAGES][:-9]),
    mnist("no gzip", "cannot be read (Not a gzipped file", content=b"no gzip at all"),
    mnist("gzip with a broken checksum", "cannot be read (CRC check failed", content=IDX[TRAIN_IMAGES][:-8] + bytes(8)),
    mnist("empty idx", "not an idx file of uint8 with 3 dimensions", content=gzip.compress(b"")),
    mnist("wrong idx magic", "not an idx file of uint8", content=gzip.compress(b"\0\0\x0d\x03" + bytes(40))),
    mnist("idx of labels for images", "not an idx file of uint8 with 3", content=gzip.compress(idx(LABELS))),
    mnist("idx that ends early", "its length is not what its header says", content=gzip.compress(idx(IMAGES)[:-1])),
    mnist("idx that goes on", "its length is not what its header says", content=gzip.compress(idx(IMAGES) + b"x")),
    mnist("idx of negative sizes", "cannot be read", content=gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12)),
    mnist(
        "idx of 2^93 pixels",
        "train-images-idx3-ubyte.gz: ",
        content=gzip.compress(b"\0\0\x08\x03" + b"\x7f\xff\xff\xff" * 3),
    ),
    mnist(
        "idx of 8 GB in 50 bytes",
        "train-images-idx3-ubyte.gz: ",
        content=gzip.compress(b"\0\0\x08\x03" + struct.pack(">3I", 2_000_000, 64, 64)),
    ),
    mnist("idx without an image", "has 6 labels for 0 images", content=gzip.compress(idx(IMAGES[:0]))),
    mnist(
        "a label out of range",
        "has the label 77, which is not below 10",
        file=TRAIN_LABELS,
        content=gzip.compress(idx(LABELS + 72)),
    ),
    mnist(
        "fewer labels than images",
        "has 5 labels for 6 images",
        file=TRAIN_LABELS,
        content=gzip.compress(idx(LABELS[:5])),
    ),
    mnist("other sizes in the test", "train and test images differ in size", content=gzip.compress(idx(IMAGES[:, :9]))),
]

PICKLES = [
    batches("a pickle that runs code", "it names pathlib", _Code()),
    batches("a pickle of a list", "not a CIFAR batch (a dictionary), but a list", [1, 2]),
    batches("a truncated pickle", "not a readable CIFAR batch", pickle.dumps(CIFAR)[:-30]),
    batches("an empty pickle", "not a readable CIFAR batch", b""),
    batches("a batch without labels", "not a CIFAR batch (uint8 `data`", {"data": CIFAR["data"]}),
    batches("a batch of floats", "not a CIFAR batch (uint8 `data`", CIFAR | {"data": np.zeros((4, 3072))}),
    batches("labels that are texts", "data_batch_1: has a label that is no class", CIFAR | {"labels": ["a"] * 4}),
    batches("labels beyond 64 bits", "data_batch_1: has a label that is no class", CIFAR | {"labels": [2**70] * 4}),
    batches(
        "labels of several numbers", "data_batch_1: has a label that is no class", CIFAR | {"labels": [[1, 2]] * 4}
    ),
    batches("a label that is no class", "a train label is 10, but there are 10 classes", CIFAR | {"labels": [10] * 4}),
    batches("a negative label", "labels must not be negative, but one is -1", CIFAR | {"labels": [-1] * 4}),
    of(
        "an archive that is none", "cifar100", "not a readable archive", {"data/cifar-100-python.tar.gz": b"no archive"}
    ),
    of(
        "an archive of other files",
        "cifar100",
        "not a readable CIFAR batch",
        {"data/cifar-100-python.tar.gz": _empty_archive()},
    ),
    of(
        "a folder in place of a file",
        "cifar100",
        "cifar-100-python.tar.gz",
        {"data/cifar-100-python.tar.gz": _empty_archive("../cifar-100-python/meta")},
    ),
]

TREES = [
    tree("images of two sizes", "images must have one size", {"data/train/cat/2.png": LARGE}),
    tree("grey and coloured images", "images must be all grey or all coloured", {"data/train/dog/2.png": RED}),
    tree("an image that is none", "not a readable image", {"data/train/cat/2.png": b"no image"}),
    tree("a truncated image", "not a readable image", {"data/train/cat/2.png": GREY[:45]}),
    tree("an empty image", "not a readable image", {"data/train/cat/2.png": b""}),
    tree("a bomb of pixels", "not a readable image", {"data/train/cat/2.png": HUGE}),
    tree("pixels of floats", "pixels of type F are not supported", {"data/train/cat/0.tif": FLOAT}),
    tree("a test class of its own", "class 'owl' is not among the training classes", {"data/test/owl/1.png": GREY}),
    tree("images beyond memory", "data.size=1000000: makes 2 images of", {}, "data.size=1000000"),
    of("no test images", "imagefolder", "has no images in test/<class>/", {"data/train/cat/1.png": GREY}),
    of("folders without images", "imagefolder", "has no images in train/<class>/", {"data/train/cat/a.txt": b""}),
]

PARQUET = [
    tables("a parquet without the column", "has no column 'image'; it has label", parquet(label=[1])),
    tables("another column is named", "has no column 'picture'", parquet(**ROWS), "data.image_column=picture"),
    tables(
        "labels that are floats", "must hold whole numbers or texts, not double", parquet(**ROWS | {"label": [0.5] * 4})
    ),
    tables("labels that are missing", "has 1 empty values", parquet(**ROWS | {"label": [0, 1, None, 1]})),
    tables("negative labels", "labels must not be negative", parquet(**ROWS | {"label": [-1] * 4})),
    tables(
        "labels beyond all classes",
        "has the label 4611686018427387904, which is no class number",
        parquet(**ROWS | {"label": [2**62] * 4}),
    ),
    tables("unsigned labels", "not in range", parquet(**ROWS | {"label": pa.array([2**64 - 1] * 4, pa.uint64())})),
    tables(
        "images that are numbers", "must hold encoded images (bytes), not int64", parquet(**ROWS | {"image": [1] * 4})
    ),
    tables("an image that is missing", "has no image bytes", parquet(**ROWS | {"image": [GREY, None, GREY, GREY]})),
    tables("an image of text", "not a readable image", parquet(**ROWS | {"image": [b"x"] * 4})),
    tables("a struct without bytes", "has no field", parquet(**ROWS | {"image": [{"path": "x"}] * 4})),
    tables("no rows", "has no rows", parquet(image=pa.array([], pa.binary()), label=pa.array([], pa.int64()))),
    tables("a truncated parquet", "not a readable parquet file", parquet(**ROWS)[:-20]),
    tables("a column whose name is no text", "not a readable parquet", parquet(**ROWS).replace(b"label", b"la\xf4el")),
    tables("no parquet", "not a readable parquet file", b"PAR1 and nothing else"),
    tables("an empty parquet", "not a readable parquet file", b""),
    tables("an owner column that is not there", "has no column 'user'", parquet(**ROWS), "data.owner_column=user"),
    of("no test table", "parquet", "has no test-*.parquet", {"data/train.parquet": parquet(**ROWS)}),
    tables(
        "an image of which only the path is there", "a path alone is not read", parquet(**ROWS | {"image": [PATH] * 4})
    ),
    tables("two columns of labels", "columns a_label, b_label may be labels", parquet(image=[GREY], **TWO_LABELS)),
    tables("two columns of images", "columns a, b may be images", parquet(a=[GREY], b=[GREY], label=[0])),
    tables("a feature that is NaN", "row 1 of column 'x' is nan", parquet(x=[0.5, float("nan")], label=[0, 1])),
    tables("a feature that is a text", "column 'y' holds string", parquet(x=[0.5], y=["a"], label=[0])),
    tables(
        "features of two lengths", "row 1 of column 'x' has 1 numbers", parquet(x=[[0.5, 1.0], [2.0]], label=[0, 1])
    ),
    tables("tokens that nobody asked for", "set data.token_column=ids", parquet(ids=[[1], [2, 3]], label=[0, 1])),
    tokens("a negative token id", "has the token id -1", [-1]),
    tokens("a token id beyond float32", "has the token id 16777216", [2**24]),
    tokens("a text of 5,000 tokens", "is needed: the longest row has 5,000", [1] * 5000),
    tables("tokens beyond memory", "half of this machine's memory", parquet(ids=[[1]], label=[0]), TOKENS, LONG),
    tables("a configuration that is not there", "data.config=x: is no configuration", parquet(**ROWS), "data.config=x"),
    tables("test rows twice", "data.test_fraction=0.5: takes test rows", parquet(**ROWS), "data.test_fraction=0.5"),
    of(
        "two configurations",
        "parquet",
        "data.config=None: must be one of data.root=data, which has several; known: a, b",
        {f"data/{config}/{split}-0.parquet": parquet(**ROWS) for config in "ab" for split in ("train", "test")},
    ),
    of(
        "a split that is called otherwise",
        "parquet",
        "its splits are train, valid; set data.splits='{test: valid}'",
        {f"data/{split}/0000.parquet": parquet(**ROWS) for split in ("train", "valid")},
    ),
    of(
        "the hub's whole cache",
        "parquet",
        "has data sets of the hub; give one as data.root: datasets--a--b",
        {"data/datasets--a--b/snapshots/0/train.parquet": b""},
    ),
    of(
        "a single row, of which one is held out",
        "parquet",
        "needs at least two rows",
        {"data/train.parquet": parquet(image=[GREY], label=[0])},
        "data.test_fraction=0.5",
    ),
]

ANNOTATIONS = [
    coco("annotations cut off", "not a readable annotation file (JSONDecodeError", '{"images": ['),
    coco("annotations 100,000 deep", "not a readable annotation file (RecursionError", "[" * 100_000),
    coco("annotations that are a list", "not a readable annotation file (TypeError", "[]"),
    coco("annotations in another encoding", "not a readable annotation file (UnicodeDecodeError", b"\xff\xfe{}"),
    coco("an id that is infinite", "not a readable annotation file", images=[{"id": float("inf"), "file_name": "x"}]),
    coco("an id of 5,000 digits", "not a readable annotation file", f'{{"images": [{{"id": {"9" * 5000}}}]}}'),
    coco("an image without annotation", "must have one annotation for each image", annotations=[]),
    coco(
        "a category that is none",
        "has the category_id 9, which is no category",
        annotations=[{"image_id": 1, "category_id": 9}],
    ),
    coco("an image that leads out of the folder", "leads out of", images=[{"id": 1, "file_name": "../../etc/passwd"}]),
    coco("an image at a place of its own", "leads out of", images=[{"id": 1, "file_name": "/etc/passwd"}]),
    coco("an image with NUL", "train2019.json", images=[{"id": 1, "file_name": "a\0b"}]),
]

CASES = [*FIELDS, *IDX_FILES, *PICKLES, *TREES, *PARQUET, *ANNOTATIONS]
