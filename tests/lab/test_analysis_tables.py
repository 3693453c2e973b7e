"""Tables of trials and of papers, from folders as sweeps and runs leave them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml
from pandas.testing import assert_frame_equal
from scipy import stats

from engine.base.errors import ConfigError, DataError, RunFolderError
from engine.data import Assignment, FashionMnistSample
from engine.experiment import Experiment
from engine.record.run_folder import RunFolder
from engine.record.sweep_files import PLAN, PlannedTrial, write_plan
from engine.results import PaperTable, Published, label, load, setting_label, write_trials
from engine.results.settings import key, matches
from engine.results.trials import over_clients
from engine.run.log import Messages
from fedskew.lab.comparing.comparisons import comparisons, paper_frame
from fedskew.lab.comparing.ranking import ranked, settings_of
from fedskew.lab.comparing.verdicts import judge
from fedskew.lab.report.paper_tables import paper_tables
from tests.support.sweep_folders import ALPHA, BASE, MU, make_run, make_sweep

MU_OF_TWO = MU | {"values": [0.0, 0.1]}
ALGORITHMS = {
    "name": "algorithm",
    "key": "algorithm",
    "kind": "grid",
    "values": [{"name": "fedavg"}, {"name": "fedprox", "mu": 0.1}],
    "log": False,
}
STEPS = {"name": "steps", "key": "local.steps", "kind": "grid", "values": [None, 5], "log": False}
TABLE = PaperTable("a table", rows=("mu",), columns=("alpha",), metric="accuracy")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 mu x 2 alpha x 3 seeds: trial 5 failed, 7 was stopped, 9 was killed. Not to be written to."""
    folder = tmp_path_factory.mktemp("tables") / "sweep"
    return make_sweep(folder, failed=[5], stopped=[7], killed=[9], client_rows=False)


def read(folder: Path, metric: str | None = None) -> Any:
    """``load``, without pandas' own annotations, which call everything a Series or a DataFrame."""
    return load(folder, metric)


# --- trials -------------------------------------------------------------------------------------------


def test_a_row_for_each_trial(swept: Path) -> None:
    """Kills: a column that is missing or out of order; a figure from another trial; a setting that is shifted."""
    trials = read(swept).trials
    assert trials.columns.tolist() == [
        *("trial", "status", "reason", "mu", "alpha", "seed", "accuracy", "best_accuracy", "best_round"),
        *("last10_accuracy", "last10_std", "local_last10_accuracy", "local_gap", "loss", "balanced_accuracy"),
        *("macro_f1", "worst_class_accuracy", "ece", "brier", "rounds", "rounds_asked"),
        *("rounds_computed", "rounds_to_target", "bytes_to_target", "client_floats_to_best", "worst_decile_accuracy"),
        *("many_accuracy", "medium_accuracy", "few_accuracy", "client_std", "label_entropy", "step_label_entropy"),
        *("label_hellinger", "label_jensen_shannon", "label_total_variation", "effective_classes"),
        *("personal_accuracy", "personal_last10_accuracy"),
        *("personal_client_accuracy", "personal_worst_decile_accuracy", "personal_client_std"),
        *("personal_balanced_accuracy", "personal_macro_f1", "participants_accuracy", "participants_std"),
        *("fine_tuned_accuracy", "fine_tuned_client_accuracy", "held_out_accuracy", "held_out_client_accuracy"),
        *("held_out_tuned_client_accuracy", "class_accuracy", "seconds", "epsilon", "floats_up"),
        "floats_down",
        *("scope", "breaks_privacy", "weights_sha256", "parent", "schedule", "folder"),
    ]
    assert trials["trial"].tolist() == [f"{number:05d}" for number in range(24)]
    for number in (0, 11, 23):
        row = trials.iloc[number]
        record = json.loads((swept / row["folder"] / "trial.json").read_text())
        summary = json.loads((swept / row["folder"] / "summary.json").read_text())
        assert {"mu": row["mu"], "alpha": row["alpha"]} == record["setting"]
        assert row["seed"] == record["seed"]
        for name in ("accuracy", "best_accuracy", "best_round", "last10_accuracy", "last10_std", "loss", "floats_up"):
            assert row[name] == summary[name]
        evaluations = pd.read_parquet(swept / row["folder"] / "evaluations.parquet")
        assert row["class_accuracy"] == evaluations["class_accuracy"].iloc[-1].tolist()


def test_trials_that_did_not_end_well(swept: Path) -> None:
    """Kills: a failed trial that is left out, or has figures; a killed one that passes for finished."""
    trials = read(swept).trials
    failed, stopped, killed = (trials.iloc[number] for number in (5, 7, 9))
    figures = ["accuracy", "last10_accuracy", "rounds_to_target", "worst_decile_accuracy", "seconds", "floats_up"]
    assert failed["status"] == "failed"
    assert "not finite" in failed["reason"]
    assert failed[figures].isna().all()
    assert (failed["rounds"], failed["rounds_asked"]) == (0, 12)
    assert stopped["status"] == "stopped"
    assert (stopped["rounds"], stopped["rounds_asked"]) == (4, 12)
    assert stopped["accuracy"] > 0.5 and stopped["worst_decile_accuracy"] > 0.3
    assert killed["status"] == "running"
    assert killed[figures].isna().all()
    others = trials.drop([5, 7, 9])
    assert (others["status"] == "finished").all() and others["accuracy"].notna().all()


def test_a_finished_trial_without_a_summary_is_damaged(tmp_path: Path) -> None:
    """Kills: a trial record that is believed where its figures are gone."""
    folder = make_sweep(tmp_path / "s", axes=[ALPHA], seeds=[0], client_rows=False)
    (folder / "trials/00000/summary.json").unlink()
    assert read(folder).trials["status"].tolist() == ["damaged", "finished"]


def test_a_running_trial_has_no_figures_yet(tmp_path: Path) -> None:
    """Kills: the summary of an interrupted trial shown as its result."""
    folder = make_sweep(tmp_path / "s", axes=[ALPHA], seeds=[0], client_rows=False)
    record = folder / "trials/00000/trial.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"status": "running"}))
    assert read(folder).trials["accuracy"].isna().tolist() == [True, False]


BRANCHED = [
    {"name": "warm-up", "rounds": 3},
    {"name": "aside", "rounds": 4, "needs": ["warm-up"]},
    {"name": "main", "rounds": 5, "needs": ["warm-up"]},
]


@pytest.mark.parametrize(("precision", "size"), [("float32", 4), ("float64", 8)])
def test_rounds_and_bytes_to_the_target(tmp_path: Path, precision: str, size: int) -> None:
    """Kills: rounds of a branch that leads nowhere, local round numbers, 4 bytes for a float64, floats one way only."""
    base = {"stages": BRANCHED, "execution": BASE["execution"] | {"precision": precision}}
    folder = make_sweep(
        tmp_path / "s",
        axes=[ALPHA],
        seeds=[0],
        base=base,
        target_accuracy=0.64,
        accuracy=lambda *_: 0.7,
        client_rows=False,
    )
    trials = read(folder).trials
    for row in trials.to_dict("records"):
        run = RunFolder(folder / row["folder"])
        evaluations = run.frame("evaluations").query("stage != 'aside'")
        first = evaluations.loc[evaluations["accuracy"] >= 0.64, "round"].min()
        assert first > 3  # in the last stage
        rounds = run.frame("rounds").query(f"stage != 'aside' and round <= {first}")
        assert len(rounds) == first
        assert row["rounds_to_target"] == first
        assert row["bytes_to_target"] == size * (rounds["floats_up"].sum() + rounds["floats_down"].sum())
    assert read(folder).curves().groupby("trial")["round"].apply(list).tolist() == [list(range(1, 9))] * 2


def test_a_target_that_is_not_reached(tmp_path: Path) -> None:
    """Kills: 0 or the last round for "never"; a target where none was set."""
    for target in (0.999, None):
        folder = make_sweep(
            tmp_path / str(target),
            axes=[],
            seeds=[0],
            target_accuracy=target,
            client_rows=False,
            accuracy=lambda *_: 0.8,
        )
        assert read(folder).trials[["rounds_to_target", "bytes_to_target"]].isna().all(axis=None)


def test_worst_decile_by_hand() -> None:
    """Kills: a tenth rounded down, the mean of all, sizes for shares, empty clients, classes that nobody tested; n - 1
    in a deviation over all clients.
    """
    accuracy = [1.0, 0.5, None]

    def worst_decile(counts: np.ndarray) -> float:
        return over_clients(counts, accuracy)["worst_decile_accuracy"]

    eleven = np.array([[10 * k, 10 * (10 - k), 0] for k in range(11)])
    # shares of class 0: 0, 0.1, ..., 1; ceil(11 / 10) = 2 clients: (0.5 + 0.55) / 2
    assert worst_decile(eleven) == pytest.approx(0.525)
    assert over_clients(eleven, accuracy)["client_std"] == pytest.approx(0.05 * np.std(range(11)))
    assert worst_decile(eleven[:10] * 7) == pytest.approx(0.5)
    with_empty = np.concatenate([eleven[:10], np.zeros((5, 3), dtype=np.int64)])
    assert worst_decile(with_empty) == pytest.approx(0.5)
    assert worst_decile(np.array([[30, 10, 60]])) == pytest.approx(0.875)
    assert over_clients(np.array([[0, 0, 3]]), accuracy) == {}


def test_the_worst_decile_of_a_trial(swept: Path) -> None:
    """Kills: accuracies of an earlier round; another trial's partition."""
    results = read(swept)
    labels = FashionMnistSample().load().train.labels
    for row in results.trials.iloc[[0, 3]].to_dict("records"):
        counts: Any = results.class_counts(row["trial"])
        assert counts.sum() == len(labels) and counts.dtype == np.int64
        assignment = Assignment.load(swept / row["folder"] / "partition.parquet")
        np.testing.assert_array_equal(counts, assignment.class_counts(labels, 10))
        holders = counts[counts.sum(axis=1) > 0]
        expected = np.sort(holders @ np.array(row["class_accuracy"]) / holders.sum(axis=1))[:2].mean()
        assert 10 < len(holders) <= 20
        assert row["worst_decile_accuracy"] == pytest.approx(expected)
    assert not np.array_equal(results.class_counts("00000"), results.class_counts("00003"))


def test_a_report_where_the_data_are_not(tmp_path: Path, messages: Messages) -> None:
    """Kills: a table that dies because labels are elsewhere; counts made with the labels of other data."""
    folder = make_sweep(tmp_path / "s", axes=[ALPHA], client_rows=False)
    for path in folder.glob("trials/*/partition.parquet"):
        drawn = Assignment.load(path)
        Assignment(drawn.clients, drawn.dropped, "other data").save(path)
    first, second = folder / "trials/00000", folder / "trials/00001"
    (first / "partition.parquet").unlink()
    values = yaml.safe_load((second / "experiment.yaml").read_text())
    values["data"] = {"name": "parquet", "root": str(tmp_path / "gone")}
    (second / "experiment.yaml").write_text(yaml.safe_dump(values))
    results = read(folder)
    assert results.trials["accuracy"].notna().all()
    assert results.trials["worst_decile_accuracy"].isna().all()
    for trial, said in (("00000", "no such partition"), ("00001", "gone"), ("00002", "other data")):
        with pytest.raises(DataError, match=said):
            results.class_counts(trial)
    assert [text.partition(":")[0] for text in messages.drain()] == [
        "worst_decile_accuracy, many_accuracy, medium_accuracy and few_accuracy are left out for 6 of 6 trials"
    ]


def test_loading_reads_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a reader of clients.parquet; an experiment built for each trial; the data read once a trial."""
    folder = make_sweep(
        tmp_path / "s", axes=[ALPHA], base={"data": {"name": "fashion_mnist_sample", "test_samples": 500}}
    )
    for path in folder.glob("trials/*/clients.parquet"):
        path.write_bytes(b"not parquet")
    reads, built = [], []
    original = FashionMnistSample.read
    monkeypatch.setattr(FashionMnistSample, "read", lambda self: reads.append(1) or original(self))
    init = Experiment.__init__
    monkeypatch.setattr(Experiment, "__init__", lambda self, **values: built.append(1) or init(self, **values))
    results = read(folder)
    assert results.trials["worst_decile_accuracy"].notna().all()
    assert results.curves()["accuracy"].notna().all()
    assert (len(reads), built) == (1, [])
    assert results.experiment("00003").seed == 0
    assert results.experiment("00003").partition.alpha == 0.5  # pyright: ignore[reportAttributeAccessIssue]
    assert built


@pytest.mark.slow
def test_tables_of_before_there_was_reuse(swept: Path, tmp_path: Path) -> None:
    """Kills: a reader that insists on the column ``reused``, or on its absence."""
    folder = make_sweep(tmp_path / "s", failed=[5], stopped=[7], killed=[9], client_rows=False)
    for path in folder.glob("trials/*/*.parquet"):
        table = pq.read_table(path)
        pq.write_table(table.drop_columns([name for name in table.column_names if name == "reused"]), path)
    assert_frame_equal(read(folder).trials, read(swept).trials)
    assert_frame_equal(read(folder).curves(), read(swept).curves())


# --- settings and values ------------------------------------------------------------------------------


def test_settings_over_seeds(swept: Path) -> None:
    """Kills: a stopped or killed trial in a mean; ddof=0; settings out of order; counts that are lost."""
    results = read(swept)
    settings = results.settings()
    assert settings[["mu", "alpha"]].to_numpy().tolist() == [[m, a] for m in MU["values"] for a in ALPHA["values"]]
    assert settings["seeds"].tolist() == [3, 2, 2, 2, 3, 3, 3, 3]
    assert settings[["failed", "stopped", "running"]].sum().tolist() == [1, 1, 1]
    finished = results.trials[results.trials["status"] == "finished"]
    groups = finished.groupby(["mu", "alpha"])["last10_accuracy"]
    np.testing.assert_allclose(settings["mean"], groups.mean())
    np.testing.assert_allclose(settings["std"], groups.std())
    assert ((settings["low"] < settings["mean"]) & (settings["mean"] < settings["high"])).all()
    loss = results.settings("loss")
    np.testing.assert_allclose(loss["mean"], finished.groupby(["mu", "alpha"])["loss"].mean())


def test_values_that_are_no_numbers(tmp_path: Path) -> None:
    """Kills: None that becomes NaN; an algorithm that is split into columns, or that equals no other."""
    folder = make_sweep(tmp_path / "s", axes=[ALGORITHMS, STEPS], failed=[2], client_rows=False)
    results = read(folder)
    settings = results.settings()
    assert settings["algorithm"].tolist() == [value for value in ALGORITHMS["values"] for _ in range(2)]
    assert settings["steps"].tolist() == [None, 5, None, 5]
    assert settings["seeds"].tolist() == [2, 3, 3, 3]
    curves = results.curves()
    assert len(curves) == 11 * 12
    assert curves["algorithm"].iloc[0] == {"name": "fedavg"}
    assert curves["steps"].iloc[0] is None
    frame: Any = comparisons(results, PaperTable("t", ("algorithm",), ("steps",)))
    assert frame["setting"].tolist() == ["fedavg", "fedprox(mu=0.1)"]
    assert frame["reference"].tolist() == ["fedprox(mu=0.1)", "fedavg"]
    assert frame["n"].tolist() == [2, 3]
    written: Any = pd.read_parquet(write_trials(results))
    assert [json.loads(text) for text in written["algorithm"].unique()] == ALGORITHMS["values"]
    assert written["steps"].isna().sum() == 6


def test_equal_values() -> None:
    """Kills: 1 that differs from 1.0 after JSON; True that is 1; lists by identity; a list that cannot be a value."""
    assert key(1) == key(1.0) == key(np.float64(1)) == key(np.int64(1))
    assert key(True) != key(1)
    assert key([1, {"a": 2}]) == key((1.0, {"a": 2.0}))
    assert key({"a": 1, "b": None}) == key({"b": None, "a": 1}) != key({"a": 1})
    assert matches(0.1, [0.5, 0.1]) and not matches(0.1, [0.5]) and matches([64, 32], [64, 32])
    assert matches([64, 32], [[64, 32], [8]]) and not matches(64, [[64, 32]])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1"),
        (1.0, "1"),
        (np.float64(1e-5), "1e-05"),
        (20, "20"),
        (None, "none"),
        (True, "true"),
        ("sgd", "sgd"),
        ([64, 32.0], "[64, 32]"),
        ({"name": "fedavg"}, "fedavg"),
        ({"name": "fedprox", "mu": 0.10}, "fedprox(mu=0.1)"),
        ({"name": "iid_calibration"}, "iid_calibration(breaks-privacy)"),
        ({"name": "iid_calibration", "fraction": 1.0}, "iid_calibration(breaks-privacy, fraction=1)"),
        ("iid_calibration", "iid_calibration(breaks-privacy)"),
    ],
)
def test_labels(value: Any, text: str) -> None:
    """Kills: ``{'name': 'fedprox'}`` or ``0.10000000000000001`` in a report."""
    assert label(value) == text


def test_setting_labels() -> None:
    """Kills: a value without the name of its axis."""
    assert setting_label({"mu": 0.1, "algorithm": {"name": "fedavg"}}) == "mu=0.1, fedavg"


# --- files --------------------------------------------------------------------------------------------


def test_trials_are_written_and_read_back(tmp_path: Path) -> None:
    """Kills: a column that parquet changes; a table that differs from one writing to the next."""
    folder = make_sweep(tmp_path / "s", axes=[ALPHA], failed=[1], client_rows=False)
    path = write_trials(read(folder))
    content = path.read_bytes()
    assert path == folder / "trials.parquet"
    assert write_trials(read(folder)).read_bytes() == content
    trials: Any = read(folder).trials
    written: Any = pd.read_parquet(path)
    figures = [name for name in trials if name not in ("class_accuracy", "reason", "scope", "weights_sha256")]
    assert_frame_equal(written[figures], trials[figures], check_dtype=False)
    assert written["scope"].dropna().tolist() == ["global"] * 5
    assert written["class_accuracy"].iloc[0].tolist() == trials["class_accuracy"].iloc[0]


def test_a_single_run_is_a_sweep_of_one(tmp_path: Path) -> None:
    """Kills: a report that knows sweeps only; a run cut short that passes for finished."""
    results = read(make_run(tmp_path / "one"))
    assert (results.name, results.axes, results.seeds, results.claims) == ("made", (), (0,), ())
    [row] = results.trials.to_dict("records")
    assert (row["trial"], row["status"], row["rounds"], row["rounds_asked"]) == ("one", "finished", 12, 12)
    assert results.settings()["mean"].tolist() == [row["last10_accuracy"]]
    assert len(results.curves()) == 12
    assert results.class_counts("one").shape == (20, 10)
    assert results.experiment("one") == Experiment(**BASE)
    assert judge(results) == []
    assert write_trials(results).exists()
    cut = read(make_run(tmp_path / "cut", rounds=5)).trials.iloc[0]
    assert (cut["status"], cut["reason"]) == ("stopped", "stopped after 5 of 12 rounds")
    assert cut["accuracy"] > 0.5
    killed = read(make_run(tmp_path / "killed", summary=False)).trials.iloc[0]
    assert killed["status"] == "running" and math.isnan(killed["accuracy"])


def test_a_run_before_its_first_round(tmp_path: Path) -> None:
    """Kills: a reader that needs all files to be there."""
    RunFolder(tmp_path / "new").create(Experiment(**BASE))
    results = load(tmp_path / "new")
    assert results.trials["status"].tolist() == ["running"]
    assert len(results.curves()) == 0
    assert results.settings()["seeds"].tolist() == [0]


def test_folders_that_cannot_be_read(tmp_path: Path) -> None:
    """Kills: a traceback where a sentence is due."""
    with pytest.raises(RunFolderError, match="neither a run nor a sweep"):
        read(tmp_path)
    folder = make_sweep(tmp_path / "s", axes=[ALPHA], seeds=[0], client_rows=False)
    with pytest.raises(ConfigError, match="did you mean 'last10_accuracy'"):
        read(folder, metric="last10_acuracy")
    sweep = yaml.safe_load((folder / "sweep.yaml").read_text())
    (folder / "sweep.yaml").write_text(yaml.safe_dump({name: sweep[name] for name in ("name", "axes")}))
    with pytest.raises(RunFolderError, match="not a sweep of this version"):
        read(folder)
    itself = {"text": "t", "source": "s", "better": {"alpha": 0.05}}  # which earlier versions let pass
    (folder / "sweep.yaml").write_text(yaml.safe_dump({**sweep, "claims": [itself]}))
    with pytest.raises(RunFolderError, match=r"s/sweep.yaml is not a sweep of this version .*worse=.*the same setting"):
        read(folder)
    sweep["axes"][0]["name"] = "rounds"
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    with pytest.raises(ConfigError, match="give the axis another name"):
        read(folder)


def test_another_metric_has_its_own_direction(swept: Path) -> None:
    """Kills: the best setting by loss being the one with the largest."""
    assert read(swept).mode == "max"
    results = read(swept, metric="loss")
    assert (results.metric, results.mode) == ("loss", "min")
    best: Any = comparisons(results, PaperTable("t", ("mu",), ("alpha",), "loss"))
    assert best["reference"].unique().tolist() == ["mu=0.1"]
    assert (best["difference"] > 0).all()


# --- tables of papers ---------------------------------------------------------------------------------


def test_cells_of_a_table(swept: Path) -> None:
    """Kills: rows and columns exchanged, the wrong metric, a paper's figure in the wrong cell."""
    published = (
        Published({"mu": 0.1, "alpha": 0.5}, 0.8),
        Published({"mu": 1, "alpha": 0.5}, 0.7, same_setting=False, note="200 rounds"),
        Published({"mu": 0}, 0.5),  # does not say which alpha
    )
    layout = PaperTable("t", ("mu",), ("alpha",), "accuracy", "a paper", published)
    frame: Any = paper_frame(read(swept), layout).set_index(["mu", "alpha"])
    assert len(frame) == 8
    trials = read(swept).trials
    cell = trials[(trials["mu"] == 0.1) & (trials["alpha"] == 0.5)]["accuracy"]
    mine = frame.loc[(0.1, 0.5)]
    assert (mine["mean"], mine["std"], mine["n"]) == pytest.approx((cell.mean(), cell.std(), 3))
    assert mine["low"] < mine["mean"] < mine["high"]
    assert (mine["published"], mine["difference"]) == pytest.approx((0.8, cell.mean() - 0.8))
    other = frame.loc[(1.0, 0.5)]
    assert (other["published"], other["same_setting"], other["note"]) == (0.7, False, "200 rounds")
    assert math.isnan(other["difference"])
    assert frame["published"].notna().sum() == 2
    assert frame["averaged"].unique().tolist() == [""]
    assert frame[["failed", "stopped", "running"]].sum().tolist() == [1, 1, 1]


def test_an_axis_that_is_in_neither_is_averaged_seed_by_seed(swept: Path) -> None:
    """Kills: a mean over trials that mixes unequal shares of the averaged axis; averaging that is not told."""
    results = read(swept)
    frame: Any = paper_frame(results, PaperTable("t", ("mu",), (), "accuracy"))
    assert frame["averaged"].unique().tolist() == ["alpha"]
    assert frame["n"].tolist() == [2, 1, 3, 3]  # a seed counts if it has finished at both alphas
    trials = results.trials[results.trials["mu"] == 0]
    whole = trials[trials["seed"] < 2].groupby("seed")["accuracy"].mean()
    assert frame["mean"].iloc[0] == pytest.approx(whole.mean())
    assert frame["std"].iloc[0] == pytest.approx(whole.std())
    kept: Any = paper_frame(results, PaperTable("t", ("mu",), (), "accuracy", where={"alpha": 0.5}))
    assert kept["averaged"].unique().tolist() == [""]
    assert kept["n"].tolist() == [2, 2, 3, 3]
    with pytest.raises(ConfigError, match="did you mean 'alpha'"):
        paper_frame(results, PaperTable("t", ("mu",), ("alhpa",)))


def test_differences_in_a_table(swept: Path) -> None:
    """Kills: an unpaired difference; a comparison across columns; p-values that are not adjusted over the table."""
    results = read(swept)
    frame: Any = comparisons(results, TABLE)
    assert frame[["alpha", "mu"]].to_numpy().tolist() == [[a, m] for a in (0.05, 0.5) for m in (0.0, 0.01, 1.0)]
    trials = results.trials.set_index(["mu", "alpha", "seed"])["accuracy"]
    a, b = trials.loc[1.0, 0.05], trials.loc[0.1, 0.05]
    scipy: Any = stats.ttest_rel(a, b)
    row = frame[(frame["mu"] == 1) & (frame["alpha"] == 0.05)].iloc[0]
    interval = scipy.confidence_interval()
    assert (row["difference"], row["low"], row["high"]) == pytest.approx((np.mean(a - b), interval.low, interval.high))
    assert (row["p"], row["n"], row["seeds"], row["reference"]) == (0.25, 3, (0, 1, 2), "mu=0.1")
    assert frame["p_holm"].iloc[0] > frame["p"].iloc[0]
    # mu=0.01: trials 7 (seed 1, alpha 0.05) and 9 (seed 0, alpha 0.5) did not finish; mu=0: trial 5 (seed 2)
    assert frame["seeds"].tolist() == [(0, 1, 2), (0, 2), (0, 1, 2), (0, 1), (1, 2), (0, 1, 2)]


def test_differences_against_the_best(swept: Path) -> None:
    """Kills: the best of the whole table in place of its column's; the best compared with itself."""
    frame: Any = comparisons(read(swept), TABLE)
    assert frame["reference"].unique().tolist() == ["mu=0.1"]
    assert frame["mu"].tolist() == [0.0, 0.01, 1.0] * 2
    assert (frame["difference"] < 0).all()
    along: Any = comparisons(read(swept), PaperTable("t", ("alpha",), ("mu",), "accuracy"))
    assert along["mu"].tolist() == MU["values"]
    assert along["reference"].tolist() == ["alpha=0.05", *["alpha=0.5"] * 3]  # trial 5 of mu=0, alpha=0.5 failed


def test_differences_of_a_figure_that_some_trials_lack(swept: Path) -> None:
    """Kills: seeds listed that do not count; a NaN that spreads."""
    results = read(swept)
    frame: Any = comparisons(results, replace(TABLE, metric="rounds_to_target"))
    rounds = results.trials.set_index(["mu", "alpha", "seed"])["rounds_to_target"]
    both = (rounds.loc[1.0, 0.05] - rounds.loc[0.1, 0.05]).dropna()
    assert 0 < len(both) < 3
    row = frame[(frame["mu"] == 1) & (frame["alpha"] == 0.05)].iloc[0]
    assert (row["n"], row["seeds"], row["difference"]) == (len(both), tuple(both.index), both.mean())
    none = frame[(frame["mu"] == 0) & (frame["alpha"] == 0.05)].iloc[0]
    assert (none["n"], none["seeds"]) == (0, ()) and math.isnan(none["p_holm"])


def test_differences_are_paired_before_they_are_averaged(tmp_path: Path) -> None:
    """Kills: means over other points of the averaged axis on the two sides."""
    steep = lambda setting, seed: 0.5 + 0.3 * (setting["alpha"] > 0.1) + 0.02 * (setting["mu"] > 0)  # noqa: E731
    folder = make_sweep(tmp_path / "s", axes=[MU_OF_TWO, ALPHA], accuracy=steep, failed=[3, 6], client_rows=False)
    frame: Any = comparisons(read(folder), PaperTable("t", ("mu",), (), "accuracy"))
    # trial 3 is mu 0, alpha 0.5, seed 0; trial 6 is mu 0.1, alpha 0.05, seed 0
    assert (frame["seeds"].tolist(), frame["averaged"].tolist()) == ([(1, 2)], ["alpha"])
    assert frame["reference"].tolist() == ["mu=0.1"]
    assert frame["difference"].iloc[0] == pytest.approx(-0.02, abs=0.002)


def test_points_that_one_side_never_had_are_left_out(tmp_path: Path) -> None:
    """Kills: no comparison at all where the grid has a hole; a hole that is filled with other points."""
    steep = lambda setting, seed: 0.5 + 0.3 * (setting["alpha"] > 0.1) + 0.02 * (setting["mu"] > 0)  # noqa: E731
    folder = make_sweep(tmp_path / "s", axes=[MU_OF_TWO, ALPHA], accuracy=steep, client_rows=False)
    for number in (9, 10, 11):  # mu 0.1 at alpha 0.5
        (folder / f"trials/{number:05d}/trial.json").unlink()
    plan = (folder / PLAN).read_text().splitlines()  # a grid that never had them
    write_plan(folder, [PlannedTrial(**json.loads(line.rstrip(","))) for line in plan[1:10]])
    frame: Any = comparisons(load(folder), PaperTable("t", ("mu",), (), "accuracy"))
    assert frame["n"].tolist() == [3]
    assert frame["reference"].tolist() == ["mu=0"]
    assert frame["difference"].iloc[0] == pytest.approx(0.02, abs=0.002)


def test_a_seed_that_failed_is_no_merit(tmp_path: Path) -> None:
    """Kills: a setting that failed on most seeds as the reference, in bold, or as the best; one whose cell does not say
    so; no reference where all have failed."""
    lucky = lambda setting, seed: 0.7 + seed / 10 + (0.01 * seed if setting["mu"] else 0.0)  # noqa: E731
    layout = PaperTable("t", ("mu",), (), "accuracy")
    for failed, reference, bold in (([3], "mu=0", [True, False]), ([0, 3], "mu=0.1", [True, True])):
        folder = make_sweep(tmp_path / reference, axes=[MU_OF_TWO], accuracy=lucky, failed=failed, client_rows=False)
        results = replace(read(folder, "accuracy"), tables=(layout,))
        assert comparisons(results, layout)["reference"].tolist() == [reference]
        cells = [row[1] for row in paper_tables(results)[0].tables[0].rows]
        assert [cell.style == "best" for cell in cells] == bold
        assert cells[1].text.endswith(", 1 failed")
        assert ranked(settings_of(results), "max")[0].label == reference


def test_trials_of_a_population_that_end_alike_are_one_seed(tmp_path: Path) -> None:
    """Kills: all but the last of them dropped; trials that pass for seeds, with an interval."""
    drawn = {**MU, "kind": "sampled", "values": [0.1, 0.1, 0.1]}
    results = read(make_sweep(tmp_path / "s", axes=[drawn], seeds=(0,), rounds=2, client_rows=False))
    results.trials["last10_accuracy"], results.trials["weights_sha256"] = [0.8, 0.7, 0.6], ["a", "b", "c"]
    (setting,), (row,) = settings_of(results), results.settings().to_dict("records")
    assert setting.mean == pytest.approx(0.7) and row["mean"] == pytest.approx(0.7)
    assert setting.summary.n == row["seeds"] == 1


def test_values_come_in_the_order_of_the_search_space(swept: Path) -> None:
    """Kills: a table in the order in which trials began."""
    results = read(swept)
    mu, alpha = results.axes
    turned = replace(results, axes=(mu, replace(alpha, values=(0.5, 0.05))))
    assert turned.settings()["alpha"].tolist() == [0.5, 0.05] * 4
    assert paper_frame(turned, TABLE)["mu"].tolist() == [m for m in MU["values"] for _ in range(2)]


def test_drawn_values_come_in_order(tmp_path: Path) -> None:
    """Kills: a sampled axis that has no place in a table."""
    lr = {"name": "lr", "key": "local.lr", "kind": "sampled", "values": None, "log": True}
    folder = make_sweep(tmp_path / "s", axes=[lr], seeds=range(4), client_rows=False)
    settings = read(folder).settings()
    assert len(settings) == 4 and settings["lr"].is_monotonic_increasing
    assert settings["seeds"].tolist() == [1] * 4


def test_layouts_keep_through_yaml() -> None:
    """Kills: a field that is not written; tuples that YAML refuses."""
    layout = PaperTable(
        "t", ("a",), ("b", "c"), "loss", "s", (Published({"a": {"name": "x"}}, 0.1, False, "n"),), {"d": 1}
    )
    assert PaperTable.from_mapping(yaml.safe_load(yaml.safe_dump(layout.to_mapping()))) == layout
