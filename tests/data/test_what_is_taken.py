"""Users' data at the door: what is bookkeeping and no feature, what is no class, and what is told of what is read."""

from __future__ import annotations

import enum
import io
import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from engine.base.errors import ConfigError, DataError
from engine.data import ImageFolder, Parquet
from engine.data.own_data import as_dataset
from engine.data.samples.dataset import Dataset
from engine.data.samples.notes import note, noting
from engine.experiment import Experiment
from engine.run.run import run
from tests.support.command_line import fedskew
from tests.support.small_images import encode

GREY, RED = encode(np.full((4, 4), 9, np.uint8)), encode(np.full((4, 4, 3), 9, np.uint8))


def write(path: Path, names: list[str] | None = None, **columns: Any) -> None:
    """A parquet file; names: of the classes of ``label``, in Hugging Face's metadata."""
    table = pa.table(columns)
    if names is not None:
        features = {"label": {"_type": "ClassLabel", "names": names}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def both(root: Path, **columns: Any) -> None:
    for split in ("train", "test"):
        write(root / f"{split}.parquet", **columns)


def read(root: Path, **fields: Any) -> Dataset:
    return Parquet(root=str(root), **fields).load()


def told(data: Dataset) -> str:
    return "\n".join(data.told)


# --- features that are none ------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [None, "key", "label_place"])
def test_the_index_of_a_frame_is_no_feature(tmp_path: Path, index: str | None) -> None:
    """A frame that is sorted by its label, then shuffled: noise would score 99 %. Kills: an index as a feature, whether
    it has a name or not, is in the first file or in a later one; a column that is left out without a word.
    """
    frame = pd.DataFrame({"f": np.arange(12.0) % 5, "label": [0] * 6 + [1] * 6})
    frame.index.name = index
    frame.iloc[:6].reset_index(drop=True).to_parquet(tmp_path / "train-0.parquet")
    frame.sample(frac=1, random_state=0).to_parquet(tmp_path / "train-1.parquet")
    (frame * 1).sample(frac=1, random_state=1).to_parquet(tmp_path / "test.parquet")
    data = read(tmp_path)
    assert data.shape == (1, 1, 1) and "features: f; labels: label" in told(data)
    assert f"1 columns left out: {index or '__index_level_0__'} (an index of pandas)" in data.told
    if index is None:  # written anew by another library, which keeps the column and not the metadata
        again = pq.read_table(tmp_path / "train-1.parquet").replace_schema_metadata({})
        pq.write_table(again, tmp_path / "train-0.parquet")
        pq.write_table(again, tmp_path / "train-1.parquet")
        assert read(tmp_path).shape == (1, 1, 1)
    assert index is None or read(tmp_path, feature_columns=("f",)).shape == (1, 1, 1)


def test_columns_that_look_like_keys_or_labels_are_told(tmp_path: Path) -> None:
    """Kills: an id or a second label among the features without a word; a warning of columns that were named; digits
    that float32 loses without one."""
    ids = [2**53 + 1, 2**53 + 3, 5, 7]
    columns = {"Unnamed: 0": [0, 1, 2, 3], "user_id": ids, "Target": [0, 1, 0, 1], "f": [1.0, 2.0, 3.0, 4.0]}
    both(tmp_path, **columns, label=[0, 1, 0, 1])
    text = told(read(tmp_path))
    assert "warning: called like a key or a label, and a feature: Unnamed: 0, user_id, Target;" in text
    assert "warning: column 'user_id' has whole numbers of which float32 loses digits" in text
    named = read(tmp_path, feature_columns=("f",))
    assert "warning" not in told(named) and "columns left out: Unnamed: 0, user_id, Target" in told(named)
    both(tmp_path, f=[2**24, 2**25 + 4, 2**30], label=[0, 1, 0])
    assert "float32" not in told(read(tmp_path))


def test_columns_of_later_files_are_told(tmp_path: Path) -> None:
    """Kills: columns that only the test file has, left out in silence; two columns of one name."""
    write(tmp_path / "train.parquet", f=[1.0, 2.0], label=[0, 1])
    write(tmp_path / "test.parquet", g=[1.0, 2.0], f=[1.0, 2.0], label=[0, 1])
    assert "1 columns left out: g" in read(tmp_path).told
    twice = pa.Table.from_arrays([pa.array([1.0]), pa.array([2.0]), pa.array([0])], names=["f", "f", "label"])
    pq.write_table(twice, tmp_path / "test.parquet")
    with pytest.raises(DataError, match=r"test\.parquet: has two columns called 'f'; rename one"):
        read(tmp_path)


def test_a_shard_without_rows_is_none(tmp_path: Path) -> None:
    """Kills: an empty shard that is refused as unreadable, or whose columns are taken for those of all."""
    write(tmp_path / "train-0.parquet", g=pa.array([], pa.string()))
    write(tmp_path / "train-1.parquet", f=[1.0, 2.0, 3.0], label=[0, 1, 1], u=["a", "b", "a"])
    data = read(tmp_path, test_fraction=0.4, owner_column="u")
    assert (len(data.train), len(data.test), data.shape) == (2, 1, (1, 1, 1))


# --- labels and owners -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "numbers", "classes"),
    [
        ([0.0, 2.0, 1.0], [0, 2, 1], ("0", "1", "2")),
        ([True, False, True], [1, 0, 1], ("False", "True")),
        (["10", "9", "10"], [0, 1, 0], ("10", "9")),
        (pd.Categorical(["b", "a", "b"]), [1, 0, 1], ("a", "b")),
        (np.array([1, 0, 1], np.uint8), [1, 0, 1], ("0", "1")),
    ],
)
def test_labels_are_one_thing_in_files_and_arrays(
    tmp_path: Path, labels: Any, numbers: list[int], classes: tuple[str, ...]
) -> None:
    """Kills: whole numbers that are refused, or sorted as texts, for being stored as floats; booleans that files or
    arrays refuse; another numbering in one of the two."""
    pd.DataFrame({"f": [0.0, 1.0, 2.0], "label": labels}).to_parquet(tmp_path / "train.parquet")
    pd.DataFrame({"f": [0.0, 1.0, 2.0], "label": labels}).to_parquet(tmp_path / "test.parquet")
    for data in (read(tmp_path), as_dataset(((np.eye(3), labels),) * 2, "mine")):
        assert (data.train.labels.tolist(), data.test.labels.tolist(), data.classes) == (numbers, numbers, classes)


NO_LABELS: list[tuple[list[Any], str]] = [
    ([0.1, 0.2, 3.5], "has 3 different real numbers in .*train.* .0.1, 0.2, 3.5., and fedskew does no regression; bin"),
    ([0.0, 0.5, 1.0], "has 3 different real numbers in .*train"),
    ([[0], [0, 1], [1]], r"has several values a row in .*train.*no multi-label"),
    ([[0, 1], [1, 0], [1, 1]], r"has several values a row in .*train.*no multi-label"),
    ([0.0, float("inf"), 1.0], "real numbers"),
]


@pytest.mark.parametrize(("labels", "message"), NO_LABELS)
def test_what_is_no_class_is_refused_by_its_name(tmp_path: Path, labels: list[Any], message: str) -> None:
    """Kills: targets of a regression as 800 classes, in arrays or in files; lists of labels cast or refused without a
    field and a repair."""
    both(tmp_path, f=[0.0, 1.0, 2.0], label=labels)
    with pytest.raises(ConfigError, match=message) as raised:
        read(tmp_path)
    assert (raised.value.field, raised.value.value) == ("data.label_column", "label") and raised.value.repair
    with pytest.raises(ConfigError, match=message):
        as_dataset(((np.eye(3), labels),) * 2, "mine")


def test_labels_that_are_missing_or_too_large(tmp_path: Path) -> None:
    """Kills: a class called None or nan; 2^64 - 1 that becomes -1; a list of as many classes as the largest number."""
    x = np.eye(3)
    for labels, message in (
        (np.array(["a", None, "b"], object), "neither whole numbers nor texts, or some that are empty"),
        (np.array(["a", float("nan"), "b"], object), "neither whole numbers nor texts"),
        (["a", float("nan"), "b"], "neither whole numbers nor texts"),
        ([0, "a", 1], "neither whole numbers nor texts"),
        ([True, 2, 3], "neither whole numbers nor texts"),
        ([np.True_, 2, 3], "neither whole numbers nor texts"),
        ([b"1", 1, 2], "neither whole numbers nor texts"),
        (["a", "a\0", "b"], "neither whole numbers nor texts"),
        (np.array([0, 1, 2**64 - 1], np.uint64), "has the number 18446744073709551615 in train"),
        (np.array([0, 1, 10**12]), "has the label 1000000000000, which is no class number"),
        (np.array([0, 1, 2], "datetime64[D]"), "neither whole numbers nor texts"),
    ):
        with pytest.raises(ConfigError, match=message):
            as_dataset(((x, labels),) * 2, "mine")


class Kind(str, enum.Enum):  # noqa: UP042 (as users write it)
    CAT, DOG = "cat", "dog"


def test_what_an_array_would_drop(tmp_path: Path) -> None:
    """Kills: one class for all members of an Enum; values below a mask; columns of a frame that are in another order in
    the test split; names of classes by the order in a dictionary."""
    x, y = np.eye(3), [Kind.CAT, Kind.DOG, Kind.CAT]
    data = as_dataset(((x, y),) * 2, "mine")
    assert (data.classes, data.train.labels.tolist()) == (("cat", "dog"), [0, 1, 0])
    hidden: Any = np.ma.array([0, 1, 1], mask=[0, 0, 1])
    for split in ((x, hidden), (np.ma.array(x, mask=x > 0), [0, 1, 1]), (x, [0, 1, 1], hidden)):
        with pytest.raises(DataError, match="train has masked values; fill them, or leave those rows out"):
            as_dataset({"train": split, "test": (x, [0, 1, 1])}, "mine")
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    with pytest.raises(ConfigError, match="has the columns a, b, c in train, and c, b, a in test; give both the same"):
        as_dataset(((frame, [0, 1, 1]), (frame[["c", "b", "a"]], [0, 1, 1])), "mine")
    one = Rows([(np.zeros((2, 2)), 0)], classes={"dog": 1, "cat": 0})
    assert as_dataset((one, one), "mine").classes == ("cat", "dog")


def test_lists_of_other_lengths_are_refused(tmp_path: Path) -> None:
    """Kills: features that stand in each other's places in the test split, where their number is the same in all."""
    write(tmp_path / "train.parquet", p=[[1.0]] * 2, q=[[2.0, 3.0]] * 2, label=[0, 1])
    write(tmp_path / "test.parquet", p=[[2.0, 3.0]] * 2, q=[[1.0]] * 2, label=[0, 1])
    with pytest.raises(DataError, match=r"column 'p' has lists of other lengths, 1 in .*train.parquet and 2 in .*test"):
        read(tmp_path)


def test_shards_are_those_of_one_export(tmp_path: Path) -> None:
    """Kills: a third of the rows missing, or every row twice, without a word; a shard left out for its suffix."""
    for name in ("train-00000-of-00003", "train-00002-of-00003", "test"):
        write(tmp_path / f"{name}.parquet", f=[0.0, 1.0], label=[0, 1])
    with pytest.raises(DataError, match="the split train lacks files, or has those of several exports"):
        read(tmp_path)
    write(tmp_path / "train-00001-of-00003.parquet", f=[0.0, 1.0], label=[0, 1])
    assert len(read(tmp_path).train) == 6
    write(tmp_path / "train.parquet", f=[0.0, 1.0], label=[0, 1])
    with pytest.raises(DataError, match="lacks files, or has those of several exports"):
        read(tmp_path)
    for shard in tmp_path.glob("train-*"):
        shard.unlink()
    write(tmp_path / "train-copy.parquet", f=[0.0, 1.0], label=[0, 1])
    (tmp_path / "train-1.PARQUET").touch()
    text = told(read(tmp_path))
    assert "warning: train is read from train-copy.parquet, train.parquet: are rows in them twice?" in text
    assert "warning: left unread, by their suffix: train-1.PARQUET" in text


def test_names_of_classes_that_differ_are_refused(tmp_path: Path) -> None:
    """2.5 % in place of 97 %. Kills: the names of the first file for all, of splits or of shards; an error that does
    not name both files, or where they differ."""
    write(tmp_path / "train.parquet", ["ape", "cat", "dog"], f=[0.0, 1.0], label=[1, 2])
    write(tmp_path / "test.parquet", ["ape", "dog", "cat"], f=[0.0, 1.0], label=[2, 1])
    with pytest.raises(ConfigError, match=r"from 1 on the classes dog, cat in .*test.parquet, and cat, dog in .*train"):
        read(tmp_path)
    (tmp_path / "test.parquet").rename(tmp_path / "train-1.parquet")
    (tmp_path / "train.parquet").rename(tmp_path / "train-0.parquet")
    with pytest.raises(ConfigError, match=r"in .*train-1.parquet, and cat, dog in .*train-0.parquet; give them"):
        read(tmp_path, test_fraction=0.5)
    write(tmp_path / "train-1.parquet", f=[0.0, 1.0], label=[2, 1])
    data = read(tmp_path, test_fraction=0.5)
    assert data.classes == ("ape", "cat", "dog") and "warning: not all files name the classes of label" in told(data)
    write(tmp_path / "train-1.parquet", f=[0.0, 1.0], label=["cat", "dog"])
    with pytest.raises(ConfigError, match=r"has numbers in .*train-0.parquet and texts in .*train-1.parquet; store"):
        read(tmp_path, test_fraction=0.5)


class Rows(list[Any]):
    """A data set with names of classes, as torchvision and Hugging Face have them."""

    def __init__(self, rows: list[Any], **names: Any) -> None:
        super().__init__(rows)
        self.__dict__ |= names


def test_names_of_classes_of_own_data(tmp_path: Path) -> None:
    """A test folder without a class, as torchvision numbers it. Kills: the training split's names for the test's
    numbers; names of another ClassLabel than the one that is the label."""
    one, two = Rows([(np.zeros((2, 2)), 0)], classes=["a", "b"]), Rows([(np.zeros((2, 2)), 0)], classes=["b"])
    with pytest.raises(ConfigError, match="has from 0 on the classes b in test, and a, b in train; give them the same"):
        as_dataset((one, two), "mine")
    label, other = type("Label", (), {"names": ["x", "y"]}), type("Label", (), {"names": ["p", "q"]})
    hub = Rows([{"coarse_label": 1, "img": np.zeros((2, 2)), "fine_label": 0}])
    hub.__dict__["features"] = {"coarse_label": other, "img": None, "fine_label": label}
    assert as_dataset((hub, hub), "mine").classes == ("x", "y")


def test_owners_are_not_cast(tmp_path: Path) -> None:
    """Kills: owners 0.2 and 0.9 as one, a traceback for texts, 7 and "07" of two shards as two users or one."""
    x, y = np.eye(3), [0, 1, 0]
    owners = {"train": (x, y, ["ann", "bob", "ann"]), "test": (x, y, ["bob", "cid", "cid"])}
    data = as_dataset(owners, "mine")
    assert data.train.owners is not None and data.test.owners is not None
    assert (data.train.owners.tolist(), data.test.owners.tolist()) == ([0, 1, 0], [1, 2, 2])
    for users in ([0.2, 0.9, 1.5], [-np.inf, -1e300, 0.0]):
        with pytest.raises(ConfigError, match="3 different real numbers in train"):
            as_dataset({"train": (x, y, users), "test": (x, y)}, "mine")
    write(tmp_path / "train-0.parquet", f=[0.0, 1.0], label=[0, 1], u=[7.0, 8.0])
    write(tmp_path / "train-1.parquet", f=[0.0, 1.0], label=[0, 1], u=[8, 7])
    data = read(tmp_path, test_fraction=0.25, owner_column="u")
    assert data.train.owners is not None and sorted({*data.train.owners.tolist()}) == [0, 1]
    write(tmp_path / "train-1.parquet", f=[0.0, 1.0], label=[0, 1], u=["07", "8"])
    with pytest.raises(ConfigError, match=r"owner_column=u: has numbers in .*-0.parquet and texts in .*-1.parquet"):
        read(tmp_path, test_fraction=0.25, owner_column="u")


def test_gaps_and_too_many_classes_are_told(tmp_path: Path) -> None:
    """Kills: years as 2,003 classes without a word; a first class that is empty; counts of the wrong split; a number
    for each row taken for a class in silence."""
    both(tmp_path, f=[0.0, 1.0, 2.0], label=[1999, 2000, 2002])
    data = read(tmp_path)
    assert "classes with training + test rows: 1999 1 + 1, 2000 1 + 1, 2002 1 + 1" in told(data)
    assert "2,000 of 2,003 classes have no training row (0, 1, 2, 3, 4 and 1,995 more); numbers begin at 0" in told(
        data
    )
    both(tmp_path, f=np.arange(30.0), label=np.arange(30) + 1)
    assert "1 of 31 classes have no training row (0)" in told(read(tmp_path))
    assert "warning: 31 classes for 30 training rows" in told(read(tmp_path))
    both(tmp_path, f=np.arange(30.0), label=np.arange(30) % 2)
    kept = read(tmp_path, train_samples=10)
    assert kept.told[-1] == "classes with training + test rows: 0 5 + 15, 1 5 + 15"
    assert "train rows: 10 of 30 kept, by data.train_samples" in kept.told


# --- arrays ----------------------------------------------------------------------------------------------


def test_arrays_that_are_no_data(tmp_path: Path) -> None:
    """Kills: a traceback for data without rows; values that become infinite in float32; pixels and numbers in [0, 1]
    stacked as one type; the places in a palette taken for brightness; a bit as 1 of 255."""
    for x in (np.zeros((0, 3)), np.zeros((0, 4, 4), np.uint8)):
        with pytest.raises(DataError, match=r"data\.name=mine: train is empty"):
            as_dataset(((x, np.zeros(0, int)),) * 2, "mine")
    with pytest.raises(DataError, match="train has samples of several lengths"):
        as_dataset((([[1.0], [1.0, 2.0]], [0, 1]),) * 2, "mine")
    with pytest.raises(DataError, match="train contains NaN or infinite values"):
        as_dataset(((np.full((2, 2), 1e39), [0, 1]),) * 2, "mine")
    mixed = [(np.full((2, 2), 255, np.uint8), 0), (np.ones((2, 2), np.float32), 1)]
    with pytest.raises(DataError, match="train has samples of several shapes or types"):
        as_dataset((mixed, mixed), "mine")
    grey = Image.fromarray(np.full((4, 4, 3), 200, np.uint8)).convert("P", palette=Image.Palette.ADAPTIVE)
    bits = Image.fromarray(np.full((4, 4), 255, np.uint8)).convert("1")
    for picture, shape, value in ((grey, (3, 4, 4), 200), (bits, (1, 4, 4), 255)):
        data = as_dataset(([(picture, 0)], [(picture, 0)]), "mine")
        assert data.shape == shape and data.train.images.max() == value
    with noting() as notes:
        as_dataset(((np.array([[2**24 + 1, 0]]), [0]),) * 2, "mine")
    assert any("float32 loses digits" in sentence for sentence in notes.warnings)


# --- images ----------------------------------------------------------------------------------------------


def tree(root: Path, files: dict[str, bytes]) -> None:
    for split in ("train", "test"):
        for name in "ab":
            files = {f"{split}/{name}/0.png": GREY} | files
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def test_hidden_files_are_skipped_at_every_depth(tmp_path: Path) -> None:
    """Kills: 13 rows of 12; macOS's own files as images; a hidden parquet file, or one in an archive's bookkeeping."""
    hidden = (
        "a/.ipynb_checkpoints/0-checkpoint.png",
        "a/._0.png",
        "a/x/.y/0.png",
        "a/__MACOSX/0.png",
        "__MACOSX/a.png",
    )
    tree(tmp_path, {f"train/{name}": b"no image" for name in (*hidden, ".hidden/0.png")})
    data = ImageFolder(root=str(tmp_path)).load()
    assert (len(data.train), data.classes, data.notes) == (2, ("a", "b"), ())
    for name in ("train", "test", "__MACOSX/train-1", ".x/train-2", "._train"):
        write(tmp_path / f"p/{name}.parquet", f=[1.0, 2.0], label=[0, 1])
    assert len(read(tmp_path / "p").train) == 2


def test_what_is_left_unread_is_told(tmp_path: Path) -> None:
    """Kills: ``.jfif`` left out; other suffixes, files beside the folders of classes, other splits left out in silence;
    a count of one split alone."""
    tree(tmp_path, {"train/a/1.jfif": GREY, "train/a/2.avif": b"x", "train/b/3.AVIF": b"x", "test/readme.txt": b"x"})
    data = ImageFolder(root=str(tmp_path)).load()
    assert len(data.train) == 3
    assert f"warning: {tmp_path}/train: left unread, by their suffix: 2 .avif" in data.told
    assert f"warning: {tmp_path}/test: left unread, by their suffix: 1 .txt" in data.told
    for name in ("train", "test", "validation", "old/train-7"):
        write(tmp_path / f"p/{name}.parquet", f=[1.0, 2.0], label=[0, 1])
    unread = (
        "2 parquet files left unread, of other splits, configurations or folders: old/train-7.parquet, validation.p"
    )
    assert unread in told(read(tmp_path / "p"))


def turned(orientation: int) -> bytes:
    """A JPEG of a wide picture whose left half is white, as a camera in that orientation stores it."""
    pixels = np.zeros((8, 16, 3), np.uint8)
    pixels[:, :8] = 255
    exif = Image.Exif()
    exif[274] = orientation
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "jpeg", exif=exif, quality=100)
    return content.getvalue()


@pytest.mark.parametrize("as_table", [False, True])
def test_pictures_are_turned_as_their_exif_says(tmp_path: Path, as_table: bool) -> None:
    """As Hugging Face's ``datasets`` shows them. Kills: pixels as they are stored; a turn the other way; a turn that is
    not told, counted for one split, or made only in folders."""
    if as_table:
        both(tmp_path, image=[turned(1), turned(3)], label=[0, 1])
        data = read(tmp_path)
    else:
        pictures = {"a": turned(1), "b": turned(3)}
        tree(tmp_path, {f"{split}/{name}/0.png": pictures[name] for split in ("train", "test") for name in "ab"})
        data = ImageFolder(root=str(tmp_path)).load()
    assert data.train.images[0, :, :, :7].min() > 250 and data.train.images[1, :, :, :7].max() < 5
    assert "2 images turned as their EXIF orientation says" in data.told
    both(tmp_path / "q", image=[turned(6), turned(6)], label=[0, 1])
    quarter = read(tmp_path / "q")
    assert quarter.shape == (3, 16, 8)
    assert quarter.train.images[0, 0, :7].min() > 250 and quarter.train.images[0, 0, 9:].max() < 5


def test_images_that_were_changed_are_counted(tmp_path: Path) -> None:
    """Kills: a conversion or a resize without a word; counts of one split; a grey split beside a coloured one that is
    refused without the key; the key for features; a picture of nothing by an object's address."""
    both(tmp_path, image=[encode(np.zeros((6, 4), np.uint8)), RED, GREY], label=[0, 1, 0])
    data = read(tmp_path, colour="rgb", size=4)
    assert "4 images converted from Pillow's mode L to RGB" in data.told and "2 images resized to 4x4" in data.told
    assert read(tmp_path, colour="grey", size=4).shape == (1, 4, 4)
    write(tmp_path / "train.parquet", image=[GREY, GREY], label=[0, 1])
    write(tmp_path / "test.parquet", image=[RED, RED], label=[0, 1])
    with pytest.raises(
        ConfigError, match=r"data.colour=None: .*train have 1 channels, those of test 3; set data.colour"
    ):
        read(tmp_path)
    assert read(tmp_path, colour="grey").shape == (1, 4, 4)
    both(tmp_path, image=[b"nothing", GREY], label=[0, 1])
    with pytest.raises(DataError, match=r"row 0: not a readable image \(none of PNG, JPEG, .*\); get it again"):
        read(tmp_path)
    both(tmp_path, f=[0.0, 1.0], label=[0, 1])
    for fields in ({"colour": "rgb"}, {"size": 8}):
        with pytest.raises(ConfigError, match="is for images, and none are read; leave it out"):
            read(tmp_path, **fields)


def sixteen_bits() -> bytes:
    """A coloured PNG of 4x4 pixels, 16 bits for each colour, which Pillow cannot write."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, 16, 2, 0, 0, 0))
    rows = chunk(b"IDAT", zlib.compress((b"\0" + b"\0\x10" * 3 * 4) * 4))
    return b"\x89PNG\r\n\x1a\n" + header + rows + chunk(b"IEND", b"")


def test_what_is_beside_images_is_told(tmp_path: Path) -> None:
    """Kills: thumbnails of a storage box as rows; a class without images, or a split, that is left out without a word;
    the upper byte of 16 bits, which may be 0 everywhere."""
    tree(tmp_path, {"val/a/0.png": GREY, "train/a/@eaDir/0.png/thumb.png": GREY})
    (tmp_path / "train/c").mkdir()
    data = ImageFolder(root=str(tmp_path)).load()
    assert len(data.train) == 2 and "1 left unread beside train and test: val" in data.told
    assert f"warning: {tmp_path}/train/c: has no image, and is no class" in data.told
    (tmp_path / "train/a/1.png").write_bytes(sixteen_bits())
    with pytest.raises(DataError, match=r"1.png: has 16 bits for each colour; convert to 8 bits"):
        ImageFolder(root=str(tmp_path)).load()


def test_a_class_that_is_no_text_is_refused_at_the_start(tmp_path: Path) -> None:
    """A folder's name in Latin-1. Kills: a traceback once the training is over."""
    tree(tmp_path, {})
    folder = os.fsencode(tmp_path / "train") + b"/caf\xe9"
    os.mkdir(folder)
    Path(os.fsdecode(folder + b"/0.png")).write_bytes(GREY)
    with pytest.raises(DataError, match=r"imagefolder: the class 'caf\\udce9' is no text in UTF-8; rename it"):
        ImageFolder(root=str(tmp_path)).load()


# --- who shows it ----------------------------------------------------------------------------------------


def test_check_and_a_run_tell_what_was_taken(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Kills: words that only a run says, or only a check; warnings that a script or a sweep is not given; training in
    a check; a fingerprint that counts them; a name with control characters that reaches the terminal; anything else
    than the object on standard output."""
    both(tmp_path, **{"f\x1b[31m": [0.0, 1.0] * 8, "label": [0, 1] * 8})
    words = ["data.name=parquet", f"data.root={tmp_path}"]
    code, out, _ = fedskew(monkeypatch, capsys, "check", *words)
    lines = out.splitlines()
    assert (code, lines[0]) == (0, "name parquet, train 16, test 16, shape (1, 1, 1)")
    assert lines[1:] == [
        "  features: f\\x1b[31m; labels: label; owners: none",
        "  classes with training + test rows: 0 8 + 8, 1 8 + 8",
    ]
    code, out, err = fedskew(monkeypatch, capsys, "check", *words, "--json")
    found = json.loads(out)["data"]
    assert code == 0 and found["told"] == [line.strip() for line in lines[1:]] and lines[1] in err
    code, _, err = fedskew(monkeypatch, capsys, "check", *words, "data.label_column=f")
    assert code == 2 and "has no column 'f'" in err
    experiment = Experiment().override(
        [*words, "rounds=1", "partition.name=iid", "partition.clients=2", "model.name=logistic", "execution.device=cpu"]
    )
    run(experiment, tmp_path / "run")
    log = (tmp_path / "run" / "log.txt").read_text()
    assert all(f"data: {sentence}" in log for sentence in found["told"])
    data = experiment.data.load()
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    caplog.clear()
    both(tmp_path, f=[0.0, 1.0] * 8, user_id=[0.0, 1.0] * 8, label=[0, 1] * 8)
    run(experiment, tmp_path / "warned")
    caplog.set_level("WARNING", "fedskew")
    from engine.sweeps import running  # with Ray Tune

    monkeypatch.setattr(running.cluster, "share", lambda dataset: dataset)
    running._shared(experiment)
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told == 2 * [f"data: {sentence}" for sentence in experiment.data.load().warnings]
    assert data.notes and data.fingerprint == Dataset(**{**vars(data), "notes": ()}).fingerprint


def test_what_ships_says_one_line() -> None:
    """Kills: many lines of known data in every terminal, or none; lines of a load that failed before."""
    note("of another load")
    assert len(Experiment.from_mapping({"data": {"name": "synthetic"}}).data.load().told) == 1
