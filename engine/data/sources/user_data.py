"""The user's own data: image folders and parquet files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from engine.base.declared import Doc, Ge, Neutral
from engine.base.errors import DataError, require
from engine.data.samples.dataset import AS_IS, Dataset, MeanStd, Split, assembled, held_out
from engine.data.samples.labels import class_numbers, places, plain
from engine.data.samples.notes import listed, note
from engine.data.sources.column_choice import Inputs, inputs_of, label_of
from engine.data.sources.finding import existing
from engine.data.sources.formats import decode_images, image_tree, is_hidden, read_files
from engine.data.sources.hub_layout import hub_files
from engine.data.sources.parquet_columns import MOST_TOKENS, ParquetTable
from engine.data.sources.splits import MODES, OURS, OwnSource, snapshot


@dataclass(frozen=True, kw_only=True)
class ImageFolder(OwnSource):
    """Images in train/<class>/... and test/<class>/... below ``root``; classes are numbered by sorted name."""

    def folder(self, download: bool = False) -> Path:
        return existing(self.root, "train/<class>/ and test/<class>/")

    def read(self) -> Dataset:
        root = snapshot(self.folder())
        self.check_test((root / self.names["test"]).is_dir())
        how = (self.size, MODES[self.colour])
        return read_tree("imagefolder", root, *how, names=self.names, test_fraction=self.test_fraction)


@dataclass(frozen=True, kw_only=True)
class Parquet(OwnSource):
    """Images, features or token ids in train-*.parquet and test-*.parquet (or train.parquet ...) below ``root``.

    The folder may be one of Hugging Face's hub, see ``hub_layout.py``; config: the configuration, where it has several.
    image_column: bytes, or a struct with ``bytes`` as Hugging Face writes it. feature_columns: numbers, or lists of as
    many in each row; D of them are D channels. token_column: lists of token ids, of which 0 is padding;
    sequence_length: ids of a row, None for as many as the longest row has. Where none of the three is given, the images
    are in ``image`` or the only column that can hold some, and without one all other columns are features.

    label_column: class numbers, or class names; None for ``label``, or the only column that can hold some.
    owner_column: the user of each sample (numbers or texts), for ``partition.name=natural``.
    """

    neutral: ClassVar[Mapping[str, Any]] = {
        **OwnSource.neutral,
        "config": None,
        "feature_columns": [],
        "token_column": None,
        "sequence_length": None,
    }

    config: Annotated[
        str | None,
        Doc("configuration of a data set of Hugging Face's hub; needed where there are several"),
        Neutral(None, "is the only one"),
    ] = None
    image_column: Annotated[str | None, Doc("column with encoded images; null: `image`, or the only one there is")] = (
        None
    )
    feature_columns: Annotated[
        tuple[str, ...],
        Doc("columns of numbers, or of lists of as many numbers; none given and no images there: all other columns"),
    ] = ()
    token_column: Annotated[str | None, Doc("column with lists of token ids, 0: padding"), Neutral(None, "is none")] = (
        None
    )
    sequence_length: Annotated[
        int | None,
        Ge(1),
        Doc("token ids of a row, cut or filled with 0; null: as many as the longest row has, up to 4,096"),
    ] = None
    label_column: Annotated[
        str | None,
        Doc("column with class numbers or names; null: `label`, or the only one called like one, or a ClassLabel"),
    ] = None
    owner_column: Annotated[
        str | None, Doc("column with the user of each sample, for `partition.name=natural`"), Neutral(None, "is none")
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        length = self.sequence_length
        rule, is_used = "is for token ids, and no column of them is named", self.token_column is not None
        require(length is None or is_used, "sequence_length", length, rule, "set data.token_column")
        inputs = ("image_column", "token_column", "feature_columns", "size", "colour")
        for field in ("token_column", "feature_columns"):
            chosen = [name for name in inputs if getattr(self, name)]
            others = [name for name in chosen if name != field]
            rule = f"cannot be set beside data.{others[0]}" if others else ""
            require(not (getattr(self, field) and others), field, getattr(self, field), rule, "set one of the two")
        twice = len(set(self.feature_columns)) < len(self.feature_columns)
        require(not twice, "feature_columns", self.feature_columns, "names a column twice", "name each once")

    def identity(self, written: Mapping[str, Any]) -> dict[str, Any]:
        # Where a column of the usual name is there, it is read whether it is named or not.
        usual = {"image_column": "image", "label_column": "label"}
        kept = super().identity(written)
        return {name: usual.get(name) if value is None and name in usual else value for name, value in kept.items()}

    def folder(self, download: bool = False) -> Path:
        return existing(self.root, "train-*.parquet and test-*.parquet")

    def read(self) -> Dataset:
        files = hub_files(self, self.folder(), self.config)
        tables = [ParquetTable.open(paths) for paths in files.values()]
        label = self.label_column or label_of(tables[0])
        index = {name for table in tables for name in table.index_columns}
        inputs = self._inputs(tables[0], label, index)
        for field in ("size", "colour") if inputs[0] != "images" else ():
            value = getattr(self, field)
            require(value is None, f"data.{field}", value, "is for images, and none are read", "leave it out")
        columns = _Columns(inputs, label, self.owner_column, self.size, self.sequence_length, MODES[self.colour])
        _tell_columns(tables, columns, index)
        return _read_tables("parquet", Path(self.root), tables, columns, self.test_fraction)

    def _inputs(self, table: ParquetTable, label: str, index: Collection[str]) -> Inputs:
        if self.token_column is not None:
            return "tokens", (self.token_column,)
        if self.feature_columns:
            return "features", self.feature_columns
        if self.image_column is not None:
            return "images", (self.image_column,)
        return inputs_of(table, {label, self.owner_column, *index})


# ---------------------------------------------------------------------------------------------- parquet
Choose = Mapping[str, Callable[[np.ndarray], np.ndarray]]  # of a split: labels -> the sorted rows to keep


@dataclass(frozen=True)
class _Columns:
    """What is read of a table."""

    inputs: Inputs
    label: str
    owner: str | None = None
    size: int | None = None  # of images
    length: int | None = None  # of rows of tokens
    mode: str | None = None  # of images


def parquet_files(root: Path, split: str) -> list[Path]:
    """List the sorted parquet files of a split in ``root`` or ``root``/data; [] if there are none."""
    for folder in (root, root / "data"):
        found = sorted({*folder.glob(f"{split}.parquet"), *folder.glob(f"{split}-*.parquet")})
        if found:
            return found
    return []


def read_parquet(
    name: str, root: Path, image: str, label: str, mean_std: MeanStd | None = None, choose: Choose | None = None
) -> Dataset:
    """Read a data set of images from the parquet files of ``root`` or ``root``/data; classes are numbered.

    mean_std: None computes them. Images of rows that are not chosen are not decoded. Raises :class:`DataError` where
    labels are no class numbers.
    """
    tables = [ParquetTable.open(parquet_files(root, split)) for split in OURS]
    return _read_tables(name, root, tables, _Columns(("images", (image,)), label), mean_std=mean_std, choose=choose)


def _read_tables(
    name: str,
    root: Path,
    tables: Sequence[ParquetTable],
    columns: _Columns,
    test_fraction: float | None = None,
    mean_std: MeanStd | None = None,
    choose: Choose | None = None,
) -> Dataset:
    """Read the tables of train and test, or that of train alone, of which ``test_fraction`` is held out."""
    ends = np.cumsum([len(table) for table in tables])[:-1]
    held = [part for table in tables for part in table.parts(columns.label)]
    numbers, classes = class_numbers(("data.label_column", columns.label), held)
    raw = np.split(np.concatenate(numbers), ends)
    rows = [np.arange(len(own)) if choose is None else choose[ours](own) for ours, own in zip(OURS, raw, strict=False)]
    labels = [own[kept] for own, kept in zip(raw, rows, strict=True)]
    owners = [None for _ in tables]
    if columns.owner is not None:
        held = [part for table in tables for part in table.parts(columns.owner)]
        users, _ = places(plain(("data.owner_column", columns.owner), held))
        owners = np.split(np.concatenate(users), ends)
    parts = list(zip(tables, rows, labels, owners, strict=True))
    if test_fraction is not None:
        table, _, numbers, users = parts[0]
        held = held_out(numbers, test_fraction, "data.test_fraction")
        parts = [(table, kept, numbers[kept], None if users is None else users[kept]) for kept in held]
    is_tokens = columns.inputs[0] == "tokens"
    length = _token_length(tables, columns) if is_tokens else 0
    splits = [Split(_read_inputs(table, columns, kept, length), own, users) for table, kept, own, users in parts]
    if columns.inputs[0] == "features":
        widths = [[table.width(name) for name in columns.inputs[1]] for table in tables]
        other = next((at for at, pair in enumerate(zip(*widths, strict=True)) if len({*pair}) > 1), None)
        if other is not None:
            there = " and ".join(f"{own[other]} in {table.paths[0]}" for own, table in zip(widths, tables, strict=True))
            raise DataError(f"column {columns.inputs[1][other]!r} has lists of other lengths, {there}; make them alike")
    if not is_tokens:
        return assembled(name, classes, _of_one_colour(splits), mean_std)
    highest = max(int(split.images.max()) for split in splits)
    return assembled(name, classes, splits, AS_IS, vocabulary=highest + 1)


def _read_inputs(table: ParquetTable, columns: _Columns, rows: np.ndarray, length: int) -> np.ndarray:
    """The images, features or tokens of sorted ``rows``, [n, C, H, W]."""
    kind, names = columns.inputs
    if kind == "images":
        return table.images(names[0], rows, columns.size, columns.mode)
    return table.features(names, rows) if kind == "features" else table.tokens(names[0], rows, length)


def _token_length(tables: Sequence[ParquetTable], columns: _Columns) -> int:
    """The token ids of a row: as asked for, or as many as the longest row of all splits has."""
    if columns.length is not None:
        return columns.length
    longest = max(table.longest(columns.inputs[1][0]) for table in tables)
    rule = f"is needed: the longest row has {longest:,} token ids, more than {MOST_TOKENS:,}"
    require(longest <= MOST_TOKENS, "data.sequence_length", None, rule, "for example data.sequence_length=512")
    return max(longest, 1)


def _tell_columns(tables: Sequence[ParquetTable], columns: _Columns, index: Collection[str]) -> None:
    """Note what is read, and what is not."""
    kind, names = columns.inputs
    note(f"{kind}: {listed(names, 30)}; labels: {columns.label}; owners: {columns.owner or 'none'}")
    read = (*names, columns.label, columns.owner or "")
    tops = {part for name in read for part in (name, f"{name}.bytes", name.partition(".")[0])}
    every = dict.fromkeys(name for table in tables for file in table.files for name in file.schema_arrow.names)
    left = [f"{name} (an index of pandas)" if name in index else name for name in every if name not in tops]
    note(f"columns left out: {listed(left)}", len(left))


# ---------------------------------------------------------------------------------------------- folders
def read_tree(
    name: str,
    root: Path,
    size: int | None = None,
    mode: str | None = None,
    mean_std: MeanStd | None = None,
    names: Mapping[str, str] | None = None,
    test_fraction: float | None = None,
) -> Dataset:
    """Read a data set from image folders <split>/<class>/ below ``root``; raise :class:`DataError` if one is empty.

    size: resize to ``size`` x ``size`` pixels. mode: "L" or "RGB", see :func:`decode_images`. mean_std: None computes
    them. names: of the splits' folders; None: train and test. test_fraction: of the training images, that become the
    test split; None: it has a folder.
    """
    folders = [root / (names or {}).get(ours, ours) for ours in OURS]
    used = folders if test_fraction is None else folders[:1]
    others = sorted(one.name for one in root.iterdir() if not is_hidden(one.name) and one not in used)
    note(f"left unread beside {' and '.join(one.name for one in used)}: {listed(others, 5)}", len(others))
    train, classes, labels = _files_of(root, folders[0], ())
    parts = [(train, labels)]
    if test_fraction is None:
        files, _, own = _files_of(root, folders[1], classes)
        parts.append((files, own))
    else:
        held = held_out(labels, test_fraction, "data.test_fraction")
        parts = [([train[row] for row in rows], labels[rows]) for rows in held]
    splits = [Split(decode_images(read_files(files), len(files), size, mode), own) for files, own in parts]
    return assembled(name, classes, _of_one_colour(splits), mean_std)


def _of_one_colour(splits: list[Split]) -> list[Split]:
    train, test = (split.images.shape[1] for split in splits)
    rule = f"leaves images as they are, and those of train have {train} channels, those of test {test}"
    are_alike = train == test or splits[0].images.dtype != np.uint8
    require(are_alike, "data.colour", None, rule, "set data.colour=rgb or data.colour=grey")
    return splits


def _files_of(root: Path, folder: Path, classes: tuple[str, ...]) -> tuple[list[Path], tuple[str, ...], np.ndarray]:
    """The images of a split, class by class, the names of all classes, and labels int64 [N] of the images.

    classes: those of the training split; none where this is it.
    """
    tree = image_tree(folder) if folder.is_dir() else {}
    if not tree:
        others = sorted(one.name for one in root.iterdir() if one.is_dir() and not is_hidden(one.name))
        repair = f"; there are {', '.join(others)}, which data.splits can name" if others else ""
        raise DataError(f"data.root={root}: has no images in {folder.name}/<class>/ (looked in {folder}){repair}")
    classes = classes or tuple(tree)
    unknown = sorted(set(tree) - set(classes))
    if unknown:
        raise DataError(f"{folder}: class {unknown[0]!r} is not among the training classes")
    labels = np.repeat([classes.index(c) for c in tree], [len(paths) for paths in tree.values()])
    return [path for paths in tree.values() for path in paths], classes, labels.astype(np.int64)
