"""Partition ``table``: what a file says and nothing else, its content in the identity, splits of others imported."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.base.errors import ConfigError, DataError
from engine.data import PARTITIONS, Assignment, ClientTable, Dataset, Split
from engine.data.samples.dataset import AS_IS
from engine.experiment import Experiment
from engine.run.preparing import prepare
from tests.support.command_line import fedskew
from tests.support.tiny import experiment

Rows = list[list[int]]  # of each client


def write(path: Path, **columns: Any) -> str:
    """A parquet file of these columns; its path."""
    pq.write_table(pa.table(columns), path)
    return str(path)


def export(path: Path, clients: Rows) -> str:
    """The samples of each client as a table."""
    lines = [(row, client) for client, rows in enumerate(clients) for row in rows]
    return write(path, row=[row for row, _ in lines], client=[client for _, client in lines])


def parts(assignment: Assignment) -> Rows:
    return [part.tolist() for part in assignment.clients]


def data_of(train: int, test: int) -> Dataset:
    """Two classes in turn."""
    one, other = (Split(np.zeros((n, 1, 1, 1), np.uint8), np.arange(n) % 2) for n in (train, test))
    return Dataset("x", ("a", "b"), one, other, *AS_IS)


# --- what a file says -----------------------------------------------------------------------------------------


def test_clients_have_the_rows_of_the_file(tmp_path: Path) -> None:
    """Client 1 has no line, and nobody has rows 0 and 5. Kills: clients renumbered without those that have nothing,
    rows in the order of lines, rows of nobody given to somebody, rows counted from 1.
    """
    file = write(tmp_path / "split.parquet", row=[4, 1, 3, 2], client=[2, 0, 0, 2])
    assignment = ClientTable(file=file).assign(np.zeros(6, np.int64), 1)
    assert (parts(assignment), assignment.dropped.tolist()) == ([[1, 3], [], [2, 4]], [0, 5])
    assert all(part.dtype == np.int64 for part in assignment.clients)
    more = ClientTable(file=file, clients=5).assign(np.zeros(6, np.int64), 1)
    assert parts(more) == [[1, 3], [], [2, 4], [], []]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_named_clients_are_numbered_by_their_names(tmp_path: Path, kind: pa.DataType) -> None:
    """By characters, so "10" comes before "9". Kills: numbers in the order of lines, names taken for numbers."""
    names = pa.array(["b", "10", "a", "b", "9"]).cast(kind)
    file = write(tmp_path / "split.parquet", row=pa.array([0, 1, 2, 3, 4], pa.uint16()), client=names)
    assert parts(ClientTable(file=file).assign(np.zeros(5, np.int64), 1)) == [[1], [4], [2], [0, 3]]


def test_test_rows_of_the_file(tmp_path: Path) -> None:
    """Kills: test rows among the training rows, test rows that are divided by classes although they are given, a client
    of test rows alone that is left out, the other columns of a file read.
    """
    columns = {"row": [0, 1, 0, 2], "client": [0, 1, 2, 0], "split": ["train", "train", "test", "test"]}
    file = write(tmp_path / "split.parquet", **columns, image=[b"x"] * 4)
    partition, data = ClientTable(file=file), data_of(4, 3)
    assignment = partition.share_tests(partition.assign(data.train.labels, 2), data)
    assert (parts(assignment), assignment.dropped.tolist()) == ([[0], [1], []], [2, 3])
    assert [part.tolist() for part in assignment.tests] == [[2], [], [0]]


def test_a_file_without_test_rows_leaves_them_to_the_classes(tmp_path: Path) -> None:
    """Client 0 has class 0 alone. Kills: clients without test rows where the file names none."""
    for extra in ({}, {"split": ["train"] * 4}):
        file = write(tmp_path / "split.parquet", row=[0, 2, 1, 3], client=[0, 0, 1, 1], **extra)
        partition, data = ClientTable(file=file), data_of(4, 6)
        tests = partition.share_tests(partition.assign(data.train.labels, 2), data).tests
        assert [part.tolist() for part in tests] == [[0, 2, 4], [1, 3, 5]]


def test_samples_are_shared_where_it_is_allowed(tmp_path: Path) -> None:
    """Kills: an overlap that passes unasked, or that loses one of the two clients."""
    file = write(tmp_path / "split.parquet", row=[0, 1, 1, 2], client=[0, 0, 1, 1])
    with pytest.raises(DataError, match=r"gives row 1 of the split train more than once; set partition.overlap=true"):
        ClientTable(file=file)
    assert parts(ClientTable(file=file, overlap=True).assign(np.zeros(3, np.int64), 1)) == [[0, 1], [1, 2]]


@settings(max_examples=50, deadline=None)
@given(owners=st.lists(st.integers(-1, 5), min_size=1, max_size=40), seed=st.integers(0, 9))
def test_any_division_comes_back(tmp_path_factory: pytest.TempPathFactory, owners: list[int], seed: int) -> None:
    """-1 is nobody. In any order of lines, compressed or not. Kills: a row lost or given twice, a hash of the file's
    bytes, or of the order of its lines.
    """
    held = [row for row, owner in enumerate(owners) if owner >= 0]
    if not held:
        return
    folder = tmp_path_factory.mktemp("split")
    order = np.random.default_rng(seed).permutation(held)
    file = write(folder / "mixed.parquet", row=order, client=np.array(owners)[order])
    table = pa.table({"client": pa.array(np.array(owners)[held], pa.int8()), "row": pa.array(held, pa.int32())})
    pq.write_table(table, folder / "sorted.parquet", compression="gzip")
    one, other = ClientTable(file=file), ClientTable(file=str(folder / "sorted.parquet"))
    assert one.sha256 == other.sha256
    assignment = one.assign(np.zeros(len(owners), np.int64), 1)
    found = np.full(len(owners), -1)
    for client, rows in enumerate(assignment.clients):
        found[rows] = client
    assert found.tolist() == owners and assignment.dropped.tolist() == np.flatnonzero(found < 0).tolist()


# --- identity, and runs that go on ------------------------------------------------------------------------------


def test_content_counts_and_places_do_not(tmp_path: Path) -> None:
    """Kills: a path in the digest, a digest without clients, rows, ends of clients or test rows, a test row taken for a
    training row, an experiment's file that forgets the hash.
    """
    changes: dict[str, dict[str, Any]] = {
        "same": {},
        "other client": {"client": [0, 1, 0]},
        "other row": {"row": [0, 1, 3]},
        "an empty client": {"client": [0, 1, 2]},
        "another end": {"client": [0, 0, 1]},
        "of the test": {"split": ["train", "train", "test"]},
        "other test row": {"row": [0, 1, 3], "split": ["train", "train", "test"]},
    }
    made = {}
    for name, change in changes.items():
        columns = {"row": [0, 1, 2], "client": [0, 1, 1], "split": ["train"] * 3} | change
        file = write(tmp_path / f"{name}.parquet", **columns)
        made[name] = Experiment(partition={"name": "table", "file": file})
    digests = {name: one.digest for name, one in made.items()}
    assert len(set(digests.values())) == len(digests)
    (tmp_path / "moved").mkdir()
    moved = (tmp_path / "same.parquet").rename(tmp_path / "moved" / "split.parquet")
    assert Experiment(partition={"name": "table", "file": str(moved)}).digest == digests["same"]
    (tmp_path / "experiment.yaml").write_text(made["same"].to_yaml())
    again = Experiment.from_yaml(tmp_path / "experiment.yaml")  # the file is not there any more
    assert again == made["same"] and again.digest == digests["same"]
    written = again.identity()["partition"]
    assert "file" not in written and re.fullmatch("[0-9a-f]{64}", written["sha256"])


def test_another_file_has_its_own_hash(tmp_path: Path) -> None:
    """Kills: the hash of the file before, by which a sweep over tables, or an override, would be refused."""
    one, other = (export(tmp_path / f"{k}.parquet", [[0, 1], [2 + k]]) for k in range(2))
    base = Experiment(partition={"name": "table", "file": one})
    changed = base.replace({"partition.file": other})
    assert changed == Experiment(partition={"name": "table", "file": other}) != base
    kept = base.override([f"partition.file={other}", f"partition.sha256={base.value_of('partition.sha256')}"])
    with pytest.raises(ConfigError, match=f"^partition.file={other}: says something else than the table of partition"):
        kept.partition.assign(np.zeros(9, np.int64), 2)


def test_a_changed_file_is_refused_and_a_run_goes_on_without_it(tmp_path: Path) -> None:
    """Kills: a new run of a file that says something else by now; a run that needs its file to go on, or that goes on
    with another division than it began with.
    """
    data = {"name": "fashion_mnist_sample", "train_samples": 60, "test_samples": 20}
    file = tmp_path / "split.parquet"
    config = experiment(data=data, partition={"name": "table", "file": export(file, [[1, 2], [0, 59]])})
    began = prepare(config, tmp_path / "run", False)
    began.write()
    export(file, [[1, 2, 3], [0, 59]])
    stored = Experiment.from_yaml(tmp_path / "run" / "experiment.yaml")
    with pytest.raises(
        ConfigError, match=r"partition.file=.*: says something else than.*; put that file back, or leave"
    ):
        prepare(stored, tmp_path / "other", False)
    file.unlink()
    for partition in (stored.partition, config.partition):
        resumed = prepare(stored.model_copy(update={"partition": partition}), tmp_path / "run", False)
        assert parts(resumed.assignment) == parts(began.assignment) == [[1, 2], [0, 59]]
    with pytest.raises(DataError, match="there is no such file"):
        prepare(stored, tmp_path / "other", False)


def test_a_run_of_a_table_resumes_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the commands. Kills: a resume that reads the file; other bits after it; a changed file in a begun folder."""
    monkeypatch.chdir(tmp_path)
    export(Path("split.parquet"), [list(range(30)), list(range(30, 50)), list(range(50, 90))])
    words = ["run", "data.train_samples=100", "data.test_samples=50", "partition.name=table", "rounds=2"]
    words += ["partition.file=split.parquet", "execution.actors=0", "checkpoint.every=1", "model.hidden=[8]"]
    words += ["participation.count=null", "--json"]

    def call(*typed: str) -> Any:
        code, out, err = fedskew(monkeypatch, capsys, *typed)
        assert code == 0, err
        return json.loads(out.splitlines()[-1])

    whole = call(*words, "--out", "whole")
    call(*words, "--out", "stopped", "--until", "1")
    export(Path("split.parquet"), [list(range(30)), list(range(30, 90))])
    code, _, err = fedskew(monkeypatch, capsys, *words, "--out", "stopped")
    assert code == 2 and "--out=stopped: holds another experiment" in err
    Path("split.parquet").unlink()
    assert call("resume", "stopped", "--json")["weights_sha256"] == whole["weights_sha256"]


# --- bad input --------------------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {"row": [0, 1, 2], "client": [0, 1, 1]}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"index": [0], "client": [0]}, "cannot be read as a table of rows and clients (it has no column 'row')"),
        ({"row": [0]}, "cannot be read as a table of rows and clients (it has no column 'client')"),
        ({**GOOD, "row": [0, 1, 1]}, "gives row 1 of the split train more than once; set partition.overlap=true"),
        ({**GOOD, "row": [0, 1, -1]}, "its column 'row' has -1, and must count from 0"),
        ({**GOOD, "row": [0.0, 1.0, 2.0]}, "its column 'row' must hold whole numbers, not double"),
        ({**GOOD, "row": pa.array([0, 1, 2**63], pa.uint64())}, "cannot be read as a table of rows and clients ("),
        ({**GOOD, "client": [0, 1, None]}, "its column 'client' has gaps"),
        ({**GOOD, "client": [0, 1, -2]}, "its column 'client' has -2, and must count from 0"),
        ({**GOOD, "client": [0, 1, 10**8]}, "'client' has 100000000, and must count from 0 to 99,999,999 at most"),
        ({**GOOD, "client": [0.5, 1.0, 2.0]}, "its column 'client' must hold whole numbers or texts, not double"),
        ({**GOOD, "split": ["train", "test", "valid"]}, "its column 'split' must hold train and test, not 'valid'"),
        ({**GOOD, "split": [0, 1, 1]}, "its column 'split' must hold train and test"),
        ({**GOOD, "split": ["test"] * 3}, "gives no training sample to anybody"),
        ({"row": pa.array([], pa.int64()), "client": pa.array([], pa.int64())}, "it has no line"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    """Kills: a traceback, a sentence that does not say which column, a check that is left out."""
    file = write(tmp_path / "split.parquet", **columns)
    with pytest.raises(DataError, match=re.escape(message)) as raised:
        PARTITIONS.build({"name": "table", "file": file})
    assert str(raised.value).startswith(f"partition.file={file}: ")


def test_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    """Kills: a traceback, or the first of the two."""
    table = pa.Table.from_arrays([pa.array([0]), pa.array([1]), pa.array([0])], names=["row", "row", "client"])
    pq.write_table(table, tmp_path / "split.parquet")
    with pytest.raises(DataError, match="cannot be read as a table of rows and clients"):
        ClientTable(file=str(tmp_path / "split.parquet"))


def test_rows_beyond_the_data_are_refused(tmp_path: Path) -> None:
    """Kills: a last row counted from 1, an IndexError later, the training split's number for test rows."""
    data = data_of(4, 2)
    file = write(tmp_path / "a.parquet", row=[0, 4], client=[0, 1])
    with pytest.raises(DataError, match=r"partition.file=.*: has row 4, but there are 4 training samples; rows are c"):
        ClientTable(file=file).assign(data.train.labels, 2)
    file = write(tmp_path / "b.parquet", row=[0, 2], client=[0, 1], split=["train", "test"])
    partition = ClientTable(file=file)
    with pytest.raises(DataError, match="has row 2, but there are 2 test samples"):
        partition.share_tests(partition.assign(data.train.labels, 2), data)


def test_fields_that_contradict_the_file_are_refused(tmp_path: Path) -> None:
    """Kills: clients cut off, a hash that cannot be one, samples that are to move."""
    file = write(tmp_path / "split.parquet", **GOOD)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"clients": 1}, r"partition.clients=1: is fewer than the 2 of partition.file; set it to 0"),
        ({"clients": -1}, r"partition.clients=-1: must be at least 0; 0 takes those of the file"),
        ({"sha256": "x"}, r"partition.sha256=x: must be 64 digits from 0 to f; leave it out"),
        ({"min_samples": 1, "on_small": "repair"}, r"partition.min_samples=1: cannot be kept where a file says who"),
        ({"file": None}, r"partition.file=None: must be a valid string"),
    ]
    for fields, message in refused:
        with pytest.raises(ConfigError, match=message):
            PARTITIONS.build({"name": "table", "file": file, **fields})


# --- splits of others -------------------------------------------------------------------------------------------
#
# Each function is another library's published definition in a few lines, with its own generator: labels -> the samples
# of each client.

LABELS = np.random.default_rng(3).permutation(np.repeat(np.arange(6), [60, 60, 60, 60, 60, 60]))
OWNERS = np.random.default_rng(4).integers(0, 7, 360)


def of_class(labels: np.ndarray, c: int) -> list[int]:
    return [row for row, label in enumerate(labels.tolist()) if label == c]


def flwr_size(labels: np.ndarray) -> Rows:
    """SizePartitioner([100, 60, 200]): in the order of the data."""
    return [list(range(100)), list(range(100, 160)), list(range(160, 360))]


def flwr_linear(labels: np.ndarray) -> Rows:
    """LinearPartitioner(8): client k of 1 to 8 has k units of 360 / 36 samples."""
    ends = [10 * k * (k + 1) // 2 for k in range(9)]
    return [list(range(ends[k], ends[k + 1])) for k in range(8)]


def flwr_pathological(labels: np.ndarray) -> Rows:
    """PathologicalPartitioner(6, num_classes_per_partition=3, "deterministic"): a class is cut among its clients."""
    clients: Rows = [[] for _ in range(6)]
    for c in range(6):
        holders = [k for k in range(6) if c in {(k + i) % 6 for i in range(3)}]
        for holder, rows in zip(holders, np.array_split(of_class(labels, c), len(holders)), strict=True):
            clients[holder] += rows.tolist()
    return clients


def flwr_shards(labels: np.ndarray) -> Rows:
    """ShardPartitioner(7, num_shards_per_partition=2, shard_size=25): 14 blocks by label, the last 10 dropped."""
    by_label = sorted(range(360), key=lambda row: labels[row])
    order = np.random.default_rng(7).permutation(14)
    return [[row for s in order[2 * k : 2 * k + 2] for row in by_label[25 * s : 25 * s + 25]] for k in range(7)]


def flwr_groups(labels: np.ndarray) -> Rows:
    """GroupedNaturalIdPartitioner(group_size=2, mode="allow-smaller", sort_unique_ids=True)."""
    return [[row for row, owner in enumerate(OWNERS.tolist()) if owner // 2 == k] for k in range(4)]


def pfllib_dir(labels: np.ndarray) -> Rows:
    """``dir``: shares of each class ~ Dir(0.5), none for clients that have N / K; again until each has 10."""
    rng = np.random.default_rng(11)
    while True:
        clients: Rows = [[] for _ in range(5)]
        for c in range(6):
            shares = rng.dirichlet([0.5] * 5) * [len(rows) < 360 / 5 for rows in clients]
            rows = rng.permutation(of_class(labels, c))
            cuts = (np.cumsum(shares / shares.sum())[:-1] * len(rows)).astype(int)
            for client, part in zip(clients, np.split(rows, cuts), strict=True):
                client += part.tolist()
        if min(map(len, clients)) >= 10:
            return clients


def pfllib_pat(labels: np.ndarray) -> Rows:
    """``pat``, class_per_client=2: a class is cut among the next ceil(K / C * 2) clients with room for one more."""
    clients: Rows = [[] for _ in range(9)]
    room = [2] * 9
    for c in range(6):
        chosen = [k for k in range(9) if room[k]][: -(-9 * 2 // 6)]
        rows = of_class(labels, c)
        each = len(rows) // len(chosen)
        for place, k in enumerate(chosen):
            end = len(rows) if place == len(chosen) - 1 else (place + 1) * each
            clients[k] += rows[place * each : end]
            room[k] -= 1
    return clients


def pfllib_exdir(labels: np.ndarray) -> Rows:
    """``exdir``, C = 2: each client has 2 random classes, each class some client; Dir(1) among those who have it."""
    rng = np.random.default_rng(13)
    while True:
        held = [set(rng.choice(6, 2, replace=False).tolist()) for _ in range(8)]
        if set().union(*held) == set(range(6)):
            break
    clients: Rows = [[] for _ in range(8)]
    for c in range(6):
        shares = rng.dirichlet([1.0] * 8) * [c in classes for classes in held]
        cuts = (np.cumsum(shares / shares.sum())[:-1] * 60).astype(int)
        for client, part in zip(clients, np.split(np.array(of_class(labels, c)), cuts), strict=True):
            client += part.tolist()
    return clients


THEIRS = [
    flwr_size,
    flwr_linear,
    flwr_pathological,
    flwr_shards,
    flwr_groups,
    pfllib_dir,
    pfllib_pat,
    pfllib_exdir,
]


def counts_by_hand(labels: np.ndarray, clients: Rows) -> list[list[int]]:
    return [[sum(int(labels[row]) == c for row in rows) for c in range(6)] for rows in clients]


@pytest.mark.parametrize("theirs", THEIRS)
def test_a_split_of_others_is_imported(tmp_path: Path, theirs: Callable[[np.ndarray], Rows]) -> None:
    """Equal sizes, class counts and samples. Kills: a client or a sample that changes its place on the way."""
    clients = theirs(LABELS)
    assignment = ClientTable(file=export(tmp_path / "split.parquet", clients)).assign(LABELS, 6)
    assert assignment.sizes().tolist() == list(map(len, clients))
    assert assignment.class_counts(LABELS, 6).tolist() == counts_by_hand(LABELS, clients)
    assert parts(assignment) == [sorted(rows) for rows in clients]


@pytest.mark.parametrize(
    ("theirs", "fields", "what"),
    [
        (flwr_size, {"name": "sizes", "clients": 3, "sizes": [100, 60, 200]}, "sizes"),
        (flwr_linear, {"name": "sizes", "clients": 8, "sizes": "linear"}, "sizes"),
        (
            flwr_pathological,
            {"name": "classes_per_client", "clients": 6, "classes": 3, "assignment": "deterministic"},
            "classes",
        ),
        (
            flwr_shards,
            {"name": "shards", "clients": 7, "shards_per_client": 2, "shard_size": 25, "leftover": "drop"},
            "dropped",
        ),
        (flwr_groups, {"name": "owner_groups", "owners_per_client": 2, "order": "sequential"}, "samples"),
    ],
)
def test_ours_are_theirs_where_nothing_is_drawn(
    theirs: Callable[[np.ndarray], Rows], fields: dict[str, Any], what: str
) -> None:
    """Our partition of that rule beside their definition. Kills: a name in the table of docs/partitions.md that stands
    for another rule.
    """
    clients = theirs(LABELS)
    ours = PARTITIONS.build(fields).assign(LABELS, 6, OWNERS)
    assert ours.sizes().tolist() == list(map(len, clients))
    if what == "classes":
        assert ours.class_counts(LABELS, 6).tolist() == counts_by_hand(LABELS, clients)
    if what == "dropped":
        nobodys = sorted(LABELS[sorted(set(range(360)) - {row for rows in clients for row in rows})])
        assert sorted(LABELS[ours.dropped]) == nobodys
    if what == "samples":
        assert parts(ours) == clients


# --- docs/partitions.md -----------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "partitions.md").read_text(encoding="utf-8")


def test_the_example_of_the_page_writes_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: an example that does not run, or whose file would be refused."""
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(example, {"samples_of_clients": [[3, 1], [], [0]]})
    assert parts(ClientTable(file="split.parquet").assign(np.zeros(4, np.int64), 1)) == [[1, 3], [], [0]]


def test_the_page_names_partitions_and_fields_that_exist() -> None:
    """Kills: a partition or a field that is called otherwise now, or that the page makes up."""
    rows = [line.split("|")[2] for line in PAGE.splitlines() if line.startswith("| `") and line.count("|") >= 3]
    cells = [re.findall(r"`([^`]+)`", cell) for cell in rows[3:]]  # after the table of columns
    assert len(cells) > 15
    named = {word.partition("=")[0] for cell in cells for one in cell for word in one.split()}
    fields = {field for name in PARTITIONS for field in PARTITIONS.fields(name)}
    choices = {"square", "exponential", "deterministic", "first_deterministic", "smaller", "bigger", "drop", "refuse"}
    theirs = {"keep_incomplete_shard", "mode", "self_balancing", "1", "2"}
    assert named <= {*PARTITIONS, *fields, *choices, *theirs}
    assert {"sizes", "class_matrix", "owner_groups", "dirichlet_capped", "natural"} <= named
