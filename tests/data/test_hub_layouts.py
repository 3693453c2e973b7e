"""Data sets laid out as they are found on Hugging Face's hub, made here in small; what is not there is one sentence."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from engine.base.errors import ConfigError, DataError
from engine.data import ImageFolder, Parquet
from engine.data.samples.dataset import channel_statistics, held_out, stratified
from engine.experiment import Experiment

PIXELS = np.random.default_rng(0).integers(0, 256, (60, 3, 6, 6), dtype=np.uint8)


def png(image: np.ndarray) -> bytes:
    """[C, H, W] -> file content."""
    content = io.BytesIO()
    Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)).save(content, "png")
    return content.getvalue()


def write(path: Path, rows: slice, image: str = "image", grey: bool = False, **columns: Any) -> None:
    """Images as the hub stores them, and other columns: values, or names and values for a ClassLabel."""
    pixels = PIXELS[rows, :1] if grey else PIXELS[rows]
    stored: dict[str, Any] = {image: [{"bytes": png(one), "path": f"{n}.png"} for n, one in enumerate(pixels)]}
    features: dict[str, Any] = {image: {"_type": "Image"}}
    for name, values in columns.items():
        names, stored[name] = values if isinstance(values, tuple) else (None, values)
        features[name] = {"_type": "ClassLabel", "names": names} if names else {"_type": "Value"}
    table = pa.table(stored).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=4)


def numbers(rows: slice, classes: int = 3) -> list[int]:
    return [row % classes for row in range(60)[rows]]


ABC = ["ape", "bee", "cow"]


def named(rows: slice) -> tuple[list[str], list[int]]:
    return ABC, numbers(rows)


# --- five sets of images as they are found ------------------------------------------------------------


def test_cifar10_as_it_is_found(tmp_path: Path) -> None:
    """plain_text/ with img and label. Kills: a folder of a configuration that is not entered, shards out of order, a
    column of images that must be called ``image``, class numbers for names."""
    folder = tmp_path / "plain_text"
    for shard, rows in enumerate((slice(0, 5), slice(5, 9))):
        write(folder / f"train-0000{shard}-of-00002.parquet", rows, "img", label=named(rows))
    write(folder / "test-00000-of-00001.parquet", slice(9, 12), "img", label=named(slice(9, 12)))
    data = Parquet(root=str(tmp_path)).load()
    assert data.classes == tuple(ABC)
    assert np.array_equal(data.train.images, PIXELS[:9]) and np.array_equal(data.test.images, PIXELS[9:12])
    assert data.train.labels.tolist() == numbers(slice(0, 9))
    assert (data.mean, data.std) == channel_statistics(PIXELS[:9])


def test_mnist_from_the_converted_branch(tmp_path: Path) -> None:
    """mnist/train/0000.parquet. Kills: a split that only a file's name can tell; shards that count as splits."""
    for split, shard, rows in (("train", 0, slice(0, 4)), ("train", 1, slice(4, 8)), ("test", 0, slice(8, 10))):
        write(tmp_path / "mnist" / split / f"000{shard}.parquet", rows, grey=True, label=named(rows))
    data = Parquet(root=str(tmp_path)).load()
    assert np.array_equal(data.train.images, PIXELS[:8, :1]) and np.array_equal(data.test.images, PIXELS[8:10, :1])


def test_femnist_as_it_is_found(tmp_path: Path) -> None:
    """One split, users, labels that are called character. Kills: hsf_id taken for the label; owners that no longer
    belong to their rows once test rows are held out; a column that is no number refused beside images."""
    rows = slice(0, 30)
    users = [f"w{row % 4}" for row in range(30)]
    write(
        tmp_path / "data" / "train-00000-of-00001.parquet",
        rows,
        grey=True,
        writer_id=users,
        hsf_id=[7] * 30,
        character=named(rows),
    )
    data = Parquet(root=str(tmp_path), owner_column="writer_id", test_fraction=0.2).load()
    assert data.classes == tuple(ABC) and (len(data.train), len(data.test)) == (24, 6)
    for split in (data.train, data.test):
        assert split.owners is not None
        for image, label, owner in zip(split.images, split.labels, split.owners, strict=True):
            row = next(row for row in range(30) if np.array_equal(PIXELS[row, :1], image))
            assert (label, owner) == (row % 3, row % 4)


def test_pacs_as_it_is_found(tmp_path: Path) -> None:
    """Domains beside labels, no test split. Kills: the domain taken for the label; test rows that are trained on, that
    lack a class, or are other ones in each run; statistics over rows that are held out."""
    rows = slice(0, 30)
    write(
        tmp_path / "data" / "train-00000-of-00001.parquet",
        rows,
        domain=(["photo", "sketch"], numbers(rows, 2)),
        label=named(rows),
    )
    data, again = (Parquet(root=str(tmp_path), test_fraction=0.3).load() for _ in range(2))
    assert data.fingerprint == again.fingerprint
    assert np.bincount(data.train.labels).tolist() == [7, 7, 7] and np.bincount(data.test.labels).tolist() == [3, 3, 3]
    test = stratified(np.arange(30) % 3, 9, "held out/test")
    train = np.setdiff1d(np.arange(30), test)
    assert np.array_equal(data.test.images, PIXELS[test]) and np.array_equal(data.train.images, PIXELS[train])
    assert (data.mean, data.std) == channel_statistics(PIXELS[train])
    with pytest.raises(DataError, match=r"has no test-\*\.parquet; its splits are train; set data\.test_fraction=0\.1"):
        Parquet(root=str(tmp_path)).load()


def test_tiny_imagenet_as_it_is_found(tmp_path: Path) -> None:
    """A split called valid. Kills: a name that is guessed unasked; an error that does not say how to name it."""
    for split, rows in (("train", slice(0, 9)), ("valid", slice(9, 12))):
        write(tmp_path / "data" / f"{split}-00000-of-00001-abc0123.parquet", rows, label=named(rows))
    message = (
        r"has no test-\*\.parquet; its splits are train, valid; set data\.splits='\{test: valid\}', or data\.test_f"
    )
    with pytest.raises(DataError, match=message):
        Parquet(root=str(tmp_path)).load()
    data = Parquet(root=str(tmp_path), splits={"test": "valid"}).load()
    assert np.array_equal(data.test.images, PIXELS[9:12])
    with pytest.raises(ConfigError, match=r"data\.test_fraction=0\.1: takes test rows from the training split, and"):
        write(tmp_path / "data" / "test-0.parquet", slice(0, 3), label=named(slice(0, 3)))
        Parquet(root=str(tmp_path), test_fraction=0.1).load()


# --- the hub's cache ----------------------------------------------------------------------------------


def cached(root: Path, commits: tuple[str, ...], main: str | None) -> Path:
    """``datasets--owner--name`` as the hub's client writes it: snapshots of links into blobs."""
    folder = root / "datasets--owner--name"
    for number, commit in enumerate(commits):
        for split, rows in (("train", slice(number, number + 6)), ("test", slice(20, 23))):
            blob = folder / "blobs" / f"{number}{split}"
            write(blob, rows, label=named(rows))
            link = folder / "snapshots" / commit / "data" / f"{split}-00000-of-00001.parquet"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(blob, link.parent))
    if main is not None:
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(main)
    return folder


def test_the_hubs_cache(tmp_path: Path) -> None:
    """Kills: links that are not followed, the first snapshot for the one that refs/main names, a way out of the folder
    through refs/main."""
    folder = cached(tmp_path, ("aaa", "bbb"), "bbb\n")
    assert np.array_equal(Parquet(root=str(folder)).load().train.images, PIXELS[1:7])
    direct = Parquet(root=str(folder / "snapshots" / "aaa")).load()
    assert np.array_equal(direct.train.images, PIXELS[:6])
    (folder / "refs" / "main").write_text("../../elsewhere")
    with pytest.raises(DataError, match=r"which snapshot is meant is not said \(there are: aaa, bbb\); give one, for"):
        Parquet(root=str(folder)).load()
    with pytest.raises(DataError, match=r"has data sets of the hub; give one as data\.root: datasets--owner--name"):
        Parquet(root=str(tmp_path)).load()


def test_a_single_snapshot_needs_no_reference(tmp_path: Path) -> None:
    """Kills: a cache without refs/main that is refused."""
    assert np.array_equal(Parquet(root=str(cached(tmp_path, ("aaa",), None))).load().train.images, PIXELS[:6])


# --- configurations -----------------------------------------------------------------------------------


def test_one_of_several_configurations_is_named(tmp_path: Path) -> None:
    """Kills: the first of several taken unasked; files of two configurations read as one; splits of another one."""
    for number, config in enumerate(("small", "large")):
        for split, rows in (("train", slice(number, number + 6)), ("test", slice(20, 23))):
            write(tmp_path / config / f"{split}-00000-of-00001.parquet", rows, label=named(rows))
    with pytest.raises(
        ConfigError, match=r"data\.config=None: must be one of .*, which has several; known: large, small"
    ):
        Parquet(root=str(tmp_path)).load()
    with pytest.raises(ConfigError, match=r"data\.config=smal: is no configuration of .*; did you mean 'small'"):
        Parquet(root=str(tmp_path), config="smal").load()
    for number, config in enumerate(("small", "large")):
        data = Parquet(root=str(tmp_path), config=config).load()
        assert np.array_equal(data.train.images, PIXELS[number : number + 6])


def test_the_nearest_files_are_the_split(tmp_path: Path) -> None:
    """As before there were configurations. Kills: an old copy further down read with it; data/ read beside it."""
    write(tmp_path / "train.parquet", slice(0, 6), label=named(slice(0, 6)))
    write(tmp_path / "test-00.parquet", slice(6, 9), label=named(slice(6, 9)))
    for place in ("data", "old", "old/data", ".cache"):
        write(tmp_path / place / "train-0.parquet", slice(9, 12), label=named(slice(9, 12)))
    assert np.array_equal(Parquet(root=str(tmp_path)).load().train.images, PIXELS[:6])


def test_circles_of_links_end(tmp_path: Path) -> None:
    """Kills: a search that goes round for ever."""
    write(tmp_path / "c" / "train-0.parquet", slice(0, 6), label=named(slice(0, 6)))
    write(tmp_path / "c" / "test-0.parquet", slice(6, 9), label=named(slice(6, 9)))
    (tmp_path / "c" / "again").symlink_to(tmp_path)
    (tmp_path / "data").symlink_to(tmp_path)
    assert len(Parquet(root=str(tmp_path)).load().train) == 6


def test_files_far_down_are_nobodys(tmp_path: Path) -> None:
    """Kills: a search through everything below a folder; a limit that is off by one."""
    for split in ("train", "test"):
        write(tmp_path / "a/b/c/d" / f"{split}.parquet", slice(0, 6), label=named(slice(0, 6)))
        write(tmp_path / "e/f/g/h/i" / f"{split}.parquet", slice(6, 12), label=named(slice(6, 12)))
    assert np.array_equal(Parquet(root=str(tmp_path)).load().train.images, PIXELS[:6])
    with pytest.raises(ConfigError, match=r"data\.config=e/f/g/h/i: is no configuration"):
        Parquet(root=str(tmp_path), config="e/f/g/h/i").load()


# --- columns ------------------------------------------------------------------------------------------


def test_a_label_that_could_be_two_columns_is_asked_for(tmp_path: Path) -> None:
    """CIFAR-100. Kills: the first of two labels taken unasked."""
    rows = slice(0, 6)
    for split in ("train", "test"):
        coarse = ["x", "y"], numbers(rows, 2)
        write(tmp_path / f"{split}-0.parquet", rows, "img", fine_label=named(rows), coarse_label=coarse)
    message = r"columns fine_label, coarse_label may be labels; name one, for example data\.label_column=fine_label"
    with pytest.raises(DataError, match=message):
        Parquet(root=str(tmp_path)).load()
    assert Parquet(root=str(tmp_path), label_column="coarse_label").load().classes == ("x", "y")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"kind": [0] * 6},
            r"has no column 'label'; it has image, kind; name the column of labels as data\.label_column",
        ),
        ({"label": [0] * 6, "image": None, "a": b"x", "b": b"y"}, r"columns a, b may be images; name one, for example"),
        ({"label": [0] * 6, "image": {"bytes": None, "path": "0.png"}}, r"row 0 of .* a path alone is not read: write"),
        ({"label": [0] * 6, "image": "0.png"}, r"column 'image' must hold encoded images \(bytes\), not string"),
    ],
)
def test_what_cannot_be_chosen_is_told(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    """Kills: a guess, a path that is opened, an error without the columns that there are."""
    whole = {"image": png(PIXELS[0]), **columns}
    table = {
        name: value if isinstance(value, list) else [value] * 6 for name, value in whole.items() if value is not None
    }
    for split in ("train", "test"):
        pq.write_table(pa.table(table), tmp_path / f"{split}.parquet")
    with pytest.raises(DataError, match=message):
        Parquet(root=str(tmp_path)).load()


# --- test rows that are held out ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "fraction", "held"), [(10, 0.1, 1), (10, 0.01, 1), (10, 0.99, 9), (2, 0.5, 1), (25, 0.3, 8)]
)
def test_a_share_is_held_out(rows: int, fraction: float, held: int) -> None:
    """Kills: a split without rows, a row in both, a row in none."""
    train, test = held_out(np.arange(rows) % 2, fraction, "data.test_fraction")
    assert len(test) == held
    assert sorted([*train, *test]) == list(range(rows))
    assert np.all(np.diff(train) > 0) and np.all(np.diff(test) > 0)


def test_rows_that_cannot_be_held_out() -> None:
    """Kills: a ValueError of numpy's for labels below 0; an empty training split."""
    with pytest.raises(DataError, match="labels must not be negative, but one is -1"):
        held_out(np.array([0, -1]), 0.5, "data.test_fraction")
    with pytest.raises(DataError, match="needs at least two rows"):
        held_out(np.array([0]), 0.5, "data.test_fraction")


def write_tree(root: Path, splits: dict[str, range]) -> None:
    for split, rows in splits.items():
        for row in rows:
            folder = root / split / ABC[row % 3]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{row:02}.png").write_bytes(png(PIXELS[row]))


def test_folders_of_images_with_another_split_or_none(tmp_path: Path) -> None:
    """Kills: names that parquet alone knows; labels of other rows than are held out; a test split passed over."""
    write_tree(tmp_path, {"training": range(30), "val": range(30, 36)})
    splits = {"train": "training", "test": "val"}
    data = ImageFolder(root=str(tmp_path), splits=splits).load()
    assert np.array_equal(data.test.images, PIXELS[[30, 33, 31, 34, 32, 35]])
    held = ImageFolder(root=str(tmp_path), splits={"train": "training"}, test_fraction=0.2).load()
    assert np.bincount(held.train.labels).tolist() == [8, 8, 8] and np.bincount(held.test.labels).tolist() == [2, 2, 2]
    for split in (held.train, held.test):
        for image, label in zip(split.images, split.labels, strict=True):
            assert label == next(row for row in range(30) if np.array_equal(PIXELS[row], image)) % 3
    with pytest.raises(
        DataError, match=r"has no images in train/<class>/ .*; there are training, val, which data\.splits"
    ):
        ImageFolder(root=str(tmp_path)).load()
    write_tree(tmp_path, {"test": range(36, 39)})
    with pytest.raises(ConfigError, match=r"data\.test_fraction=0\.2: .* the data have a split 'test'; leave it out"):
        ImageFolder(root=str(tmp_path), splits={"train": "training"}, test_fraction=0.2).load()


# --- fields -------------------------------------------------------------------------------------------


def test_digests_are_those_of_before() -> None:
    """Recorded before there were these fields. Kills: a field that moves the digest of who does not use it; one that is
    in no digest where it is used; a label that has another digest once it is named."""
    digests = {
        "a9cbaa85622e": {"name": "parquet", "root": "/x"},
        "486af53d0693": {"name": "parquet", "root": "/x", "image_column": "img", "owner_column": "u"},
        "cf4b8a6b4825": {"name": "imagefolder", "root": "/x", "size": 8},
    }
    for digest, data in digests.items():
        assert Experiment.from_mapping({"data": data}).digest == digest
    plain = {"name": "parquet", "root": "/x"}
    same = Experiment.from_mapping({"data": plain | {"label_column": "label", "image_column": "image"}})
    assert same.digest == "a9cbaa85622e"
    changes: list[dict[str, Any]] = [
        {"splits": {"test": "valid"}},
        {"test_fraction": 0.1},
        {"config": "small"},
        {"feature_columns": ["a"]},
        {"token_column": "ids"},
        {"token_column": "ids", "sequence_length": 8},
        {"label_column": "kind"},
    ]
    found = {Experiment.from_mapping({"data": plain | change}).digest for change in changes}
    assert len(found) == len(changes) and "a9cbaa85622e" not in found


def test_a_config_is_read_back(tmp_path: Path) -> None:
    """Kills: splits that YAML does not give back, or that the command line cannot set."""
    words = ["data.name=parquet", "data.root=/x", "data.splits={test: valid}", "data.feature_columns=[a, b]"]
    experiment = Experiment().override(words)
    (tmp_path / "e.yaml").write_text(experiment.to_yaml())
    again = Experiment.from_yaml(tmp_path / "e.yaml")
    assert again == experiment and again.digest == experiment.digest
    assert isinstance(again.data, Parquet)
    assert (again.data.splits, again.data.feature_columns) == ({"test": "valid"}, ("a", "b"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"splits": {"valid": "test"}}, r"splits=.*: must name splits of the data for train or test; for example"),
        ({"splits": {}}, r"splits=\{\}: must name splits"),
        ({"splits": {"test": "../../etc"}}, r"splits=.*etc.*: must name splits"),
        ({"splits": {"test": "train"}}, r"splits=.*: takes one split for both; set data\.test_fraction"),
        ({"test_fraction": 1.0}, r"test_fraction=1\.0: must be greater than 0 and below 1"),
        ({"test_fraction": 0.0}, r"test_fraction=0\.0: must be greater than 0 and below 1"),
        ({"test_fraction": 0.5, "splits": {"test": "valid"}}, r"test_fraction=0\.5: cannot be set beside a test split"),
    ],
)
def test_bad_splits(fields: dict[str, Any], message: str) -> None:
    """Kills: a name that leads out of the folder; two ways to the test rows at once."""
    for kind in (Parquet, ImageFolder):
        with pytest.raises(ConfigError, match=message):
            kind(root="x", **fields)
