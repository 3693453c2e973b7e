"""Columns of numbers and of token ids: what becomes of them, worked out by hand; what cannot be read is a sentence."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from engine.base.errors import ConfigError, DataError
from engine.data import Parquet
from engine.data.samples.batches import Rows
from engine.data.samples.dataset import Dataset, feature_statistics
from engine.data.sources import parquet_columns
from engine.experiment import Experiment
from engine.run.run import run


def write(root: Path, test: dict[str, Any] | None = None, **train: Any) -> None:
    """One file for each split; ``test``: columns that differ there."""
    for split, columns in (("train", train), ("test", train | (test or {}))):
        pq.write_table(pa.table(columns), root / f"{split}.parquet", row_group_size=2)


def read(root: Path, **fields: Any) -> Dataset:
    return Parquet(root=str(root), **fields).load()


# --- features -----------------------------------------------------------------------------------------


def test_all_other_columns_are_features(tmp_path: Path) -> None:
    """Kills: the label or the owner among the features, columns in another order, statistics over the test rows or over
    all columns at once, a division by the spread of a constant column."""
    train = {"a": [1.0, 2.0, 3.0, 6.0], "user": ["x", "y", "x", "y"], "b": [7, 7, 7, 7], "label": [0, 1, 1, 0]}
    write(tmp_path, {"a": [100.0, 0.0, 0.0, 0.0]}, **train)
    data = read(tmp_path, owner_column="user")
    assert data.train.images.shape == (4, 2, 1, 1) and data.train.images.dtype == np.float32
    assert data.train.images[:, :, 0, 0].tolist() == [[1, 7], [2, 7], [3, 7], [6, 7]]
    assert data.mean == (3.0, 7.0)
    assert data.std == (math.sqrt((4 + 1 + 0 + 9) / 4), 1.0)
    assert data.vocabulary is None
    x, _ = Rows(data, data.train, torch.device("cpu"), torch.float64).batch(torch.arange(4))
    np.testing.assert_allclose(x[:, 0, 0, 0], np.array([-2, -1, 0, 3]) / math.sqrt(3.5), rtol=0, atol=1e-12)
    np.testing.assert_allclose(x[:, 1, 0, 0], 0, rtol=0, atol=1e-12)
    plain = read(tmp_path, owner_column="user", normalise=False)
    assert (plain.mean, plain.std) == ((0.0,), (1.0,))


def test_features_by_name_come_in_that_order(tmp_path: Path) -> None:
    """Numbers of any kind, lists of as many, lists of lists. Kills: columns in the file's order; a list's numbers in
    another order, or of another row."""
    columns = {
        "words": ["p", "q", "r"],
        "vector": pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float32(), 2)),
        "flag": [True, False, True],
        "half": pa.array(np.array([0.5, 1.5, 2.5], np.float16)),
        "grid": [[[1, 2], [3, 4]], [[5, 6], [7, 8]], [[9, 10], [11, 12]]],
        "label": ["no", "yes", "no"],
    }
    write(tmp_path, **columns)
    data = read(tmp_path, feature_columns=("half", "vector", "flag", "grid"))
    wanted = [[0.5, 1, 2, 1, 1, 2, 3, 4], [1.5, 3, 4, 0, 5, 6, 7, 8], [2.5, 5, 6, 1, 9, 10, 11, 12]]
    assert data.train.images[:, :, 0, 0].tolist() == wanted
    assert data.classes == ("no", "yes") and data.train.labels.tolist() == [0, 1, 0]


def test_features_of_several_files_and_of_rows_that_are_held_out(tmp_path: Path) -> None:
    """Kills: rows counted for each file, or each batch, on its own."""
    for shard, rows in enumerate((range(5), range(5, 12))):
        table = pa.table(
            {"f": [float(row) for row in rows], "v": [[row, row / 2] for row in rows], "y_label": [0] * len(rows)}
        )
        pq.write_table(table, tmp_path / f"train-{shard}.parquet", row_group_size=3)
    data = read(tmp_path, test_fraction=0.25)
    rows = [split.images[:, 0, 0, 0] for split in (data.train, data.test)]
    assert [len(own) for own in rows] == [9, 3] and sorted(np.concatenate(rows).tolist()) == list(range(12))
    for split in (data.train, data.test):
        first = split.images[:, 0, 0, 0]
        assert np.array_equal(split.images[:, :, 0, 0], np.stack([first, first, first / 2], axis=1))


@pytest.mark.parametrize("rows", [1, 2, 3, 1024, 1025, 5000])
def test_statistics_of_features(rows: int) -> None:
    """Against sums of fractions. Kills: a row left out where halves are odd, a block left out, the spread around 0, one
    taken in float32."""
    rng = np.random.default_rng(rows)
    features = (1e4 + rng.standard_normal((rows, 2, 1, 1))).astype(np.float32)
    mean, std = feature_statistics(features)
    for column in range(2):
        values = [Fraction(float(value)) for value in features[:, column, 0, 0]]
        exact = sum(values) / rows
        spread = math.sqrt(sum((value - exact) ** 2 for value in values) / rows)
        assert mean[column] == pytest.approx(float(exact), rel=1e-15)
        assert std[column] == pytest.approx(spread if rows > 1 else 1.0, rel=1e-9)


@pytest.mark.parametrize(
    ("columns", "fields", "message"),
    [
        ({"a": [1.0, math.nan, 2.0]}, {}, r"train\.parquet: row 1 of column 'a' is nan, and features must be finite"),
        ({"a": [1.0, 2.0, math.inf]}, {}, r"row 2 of column 'a' is inf"),
        ({"a": [1.0, 1e39, 2.0]}, {}, r"row 1 of column 'a' is 1e\+39, .* numbers of float32"),
        ({"a": [1.0, 2.0, None]}, {}, r"row 2 of column 'a' is empty; fill it or drop the row"),
        ({"a": [[1.0, 2.0], [3.0, 4.0], None]}, {}, r"row 2 of column 'a' is empty"),
        ({"a": [[1.0, 2.0], [3.0, math.nan], [5.0, 6.0]]}, {}, r"row 1 of column 'a' is nan"),
        ({"a": [[1.0, 2.0], [3.0, 4.0], [5.0, None]]}, {}, r"row 2 of column 'a' is empty"),
        ({"a": [[1.0, 2.0], [3.0, 4.0], [5.0]]}, {}, r"row 2 of column 'a' has 1 numbers and others have 2"),
        (
            {"a": pa.array([[]] * 3, pa.list_(pa.float32()))},
            {},
            r"row 0 of column 'a' has no numbers; leave the column",
        ),
        ({"a": ["x", "y", "z"]}, {"feature_columns": ("a",)}, r"column 'a' must hold numbers, not string"),
        ({"a": [1.0] * 3, "b": ["x"] * 3}, {}, r"column 'b' holds string, .* for example data\.feature_columns=\[a\]"),
        ({"a": [[1], [2], [3]]}, {}, r"column 'a' holds lists of whole numbers, .*; set data\.token_column=a, or data"),
        ({"a": [1.0] * 3}, {"feature_columns": ("c",)}, r"has no column 'c'; it has a, label"),
    ],
)
def test_what_is_no_number_is_named(
    tmp_path: Path, columns: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
    """Kills: NaN that trains on, a row counted in the batch, an error without its column."""
    write(tmp_path, **columns, label=[0, 1, 0])
    with pytest.raises(DataError, match=message):
        read(tmp_path, **fields)


def test_rows_are_counted_in_their_file(tmp_path: Path) -> None:
    """Beyond the first batch of 4,096. Kills: a row number that starts again in each batch, or goes on over files."""
    values = [0.0] * 5000
    for shard in range(2):
        values[4500] = math.nan if shard else 1.0
        pq.write_table(pa.table({"a": values, "label": [0] * 5000}), tmp_path / f"train-{shard}.parquet")
    with pytest.raises(DataError, match=r"train-1\.parquet: row 4500 of column 'a' is nan"):
        read(tmp_path, test_fraction=0.1)


def test_features_beyond_memory_are_refused_before_it_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: an array that is made before anybody looks at its size."""
    write(tmp_path, v=[[1.0] * 100] * 4, ids=[[1] * 100] * 4, label=[0, 1, 0, 1])
    monkeypatch.setattr(parquet_columns, "memory_for_images", lambda: 4 * 4 * 100 - 1)
    monkeypatch.setattr(np, "empty", lambda *args, **kwargs: pytest.fail("memory was taken"))
    with pytest.raises(DataError, match=r"4 rows of 100 features take .* half of this machine's memory"):
        read(tmp_path, feature_columns=("v",))
    with pytest.raises(DataError, match=r"4 rows of 100 token ids take .*; lower data\.sequence_length"):
        read(tmp_path, token_column="ids")


# --- token ids ----------------------------------------------------------------------------------------


def test_token_ids_are_filled_and_cut(tmp_path: Path) -> None:
    """Kills: ids at the right end, filled with another number, cut at the front, normalised; the longest row looked for
    in one split alone; a vocabulary without the highest id, or without 0."""
    write(tmp_path, {"ids": [[9], [1, 2, 3, 16_777_215]]}, ids=[[5, 6, 7], []], label=[0, 1])
    data = read(tmp_path, token_column="ids")
    assert data.train.images[:, :, 0, 0].tolist() == [[5, 6, 7, 0], [0, 0, 0, 0]]
    assert data.test.images[:, :, 0, 0].tolist() == [[9, 0, 0, 0], [1, 2, 3, 16_777_215]]
    assert (data.mean, data.std, data.vocabulary) == ((0.0,), (1.0,), 16_777_216)
    x, _ = Rows(data, data.test, torch.device("cpu"), torch.float32).batch(torch.arange(2))
    assert x[1, :, 0, 0].tolist() == [1, 2, 3, 16_777_215]
    cut = read(tmp_path, token_column="ids", sequence_length=2)
    assert cut.test.images[:, :, 0, 0].tolist() == [[9, 0], [1, 2]] and cut.vocabulary == 10
    longer = read(tmp_path, token_column="ids", sequence_length=6)
    assert longer.train.images[0, :, 0, 0].tolist() == [5, 6, 7, 0, 0, 0]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[1], [-2]], r"row 1 of column 'ids' has the token id -2; a token id is a whole number from 0 to 16777215"),
        ([[1, 2], [3, 2**24]], r"row 1 of column 'ids' has the token id 16777216"),
        ([[1, 2], [None]], r"row 1 of column 'ids' has the token id None"),
        ([[1], None], r"row 1 of column 'ids' is empty"),
        ([[0.5], [1.0]], r"column 'ids' must hold lists of whole numbers, not of double; tokenise the texts first"),
        (["a b", "c"], r"column 'ids' must hold lists of numbers, not string"),
    ],
)
def test_what_is_no_token_id_is_named(tmp_path: Path, ids: list[Any], message: str) -> None:
    """Kills: ids that float32 rounds, embeddings looked up from the end, texts as they are."""
    write(tmp_path, ids=ids, label=[0, 1])
    with pytest.raises(DataError, match=message):
        read(tmp_path, token_column="ids")


def test_very_long_rows_need_a_length(tmp_path: Path) -> None:
    """Kills: one long text that makes every row as long; a limit for lengths that are asked for."""
    write(tmp_path, ids=[[1] * 4097, [2]], label=[0, 1])
    with pytest.raises(
        ConfigError, match=r"data\.sequence_length=None: is needed: the longest row has 4,097 token ids"
    ):
        read(tmp_path, token_column="ids")
    assert read(tmp_path, token_column="ids", sequence_length=4097).shape == (4097, 1, 1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sequence_length": 4}, r"sequence_length=4: is for token ids, and no column .*; set data\.token_column"),
        ({"token_column": "ids", "sequence_length": 0}, r"sequence_length=0: must be at least 1"),
        ({"token_column": "ids", "image_column": "a"}, r"token_column=ids: cannot be set beside data\.image_column"),
        (
            {"feature_columns": ("a",), "token_column": "ids"},
            r"token_column=ids: cannot be set beside data\.feature_col",
        ),
        ({"feature_columns": ("a",), "size": 8}, r"feature_columns=\('a',\): cannot be set beside data\.size"),
        ({"feature_columns": ("a", "a")}, r"feature_columns=.*: names a column twice"),
    ],
)
def test_bad_fields(fields: dict[str, Any], message: str) -> None:
    """Kills: a field that is set and does nothing."""
    with pytest.raises(ConfigError, match=message):
        Parquet(root="x", **fields)


# --- whole runs ---------------------------------------------------------------------------------------


def tables(root: Path, rows: int = 240) -> None:
    """Four classes: a feature for each that is high, on scales that differ by 1e6, and a token for each."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, rows)
    features = (np.eye(4)[labels] + 0.2 * rng.standard_normal((rows, 4))) * [1, 1e3, 1e-3, 1]
    ids = [[1 + label, *rng.integers(5, 20, rng.integers(0, 4))] for label in labels]
    table = pa.table({**{f"f{n}": features[:, n] for n in range(4)}, "ids": ids, "label": labels})
    root.mkdir()
    pq.write_table(table, root / "train-00000-of-00001.parquet")


@pytest.mark.parametrize(
    ("data", "model"),
    [
        ({"feature_columns": ["f0", "f1", "f2", "f3"]}, {"name": "logistic"}),
        ({"feature_columns": ["f0", "f1", "f2", "f3"]}, {"name": "mlp", "hidden": [8]}),
        ({"token_column": "ids"}, {"name": "dan", "vocabulary": 20, "dimension": 8, "hidden": [8]}),
    ],
)
def test_a_run_learns(tmp_path: Path, data: dict[str, Any], model: dict[str, Any]) -> None:
    """Kills: features that are not brought to one scale; rows and labels that no longer belong together."""
    tables(tmp_path / "data")
    experiment = Experiment.from_mapping(
        {
            "rounds": 15,
            "data": {"name": "parquet", "root": str(tmp_path / "data"), "test_fraction": 0.25, **data},
            "partition": {"name": "iid", "clients": 4},
            "model": model,
            "local": {"epochs": 2, "batch_size": 8, "lr": 0.3},
            "execution": {"actors": 0, "device": "cpu"},
        }
    )
    assert run(experiment, out=tmp_path / "run")["accuracy"] > 0.9


def test_a_model_that_does_not_fit_is_refused_before_the_run(tmp_path: Path) -> None:
    """Kills: a folder that is made for a run that cannot be; the model asked, but not those of clients."""
    tables(tmp_path / "data")
    base = Experiment.from_mapping({"data": {"name": "parquet", "root": str(tmp_path / "data"), "test_fraction": 0.25}})
    cases = {
        (
            "data.token_column=ids",
            "model.name=mlp",
        ): r"model\.name=mlp: takes pixels or features, and the data are token",
        ("data.token_column=ids", "model.name=dan", "model.vocabulary=19"): r"model\.vocabulary=19: is not above 19",
        ("data.feature_columns=[f0]", "model.name=dan"): r"model\.name=dan: takes token ids, and the data are pixels",
    }
    for words, message in cases.items():
        with pytest.raises(ConfigError, match=message):
            run(base.override(words), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
