"""Figures of personal models: by hand, in a run's summary and picture, on the terminal, as reports to Tune."""

from __future__ import annotations

import io
import math
import re
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from engine.base.errors import ConfigError
from engine.experiment import Experiment
from engine.record.checkpoints import Position
from engine.record.columns import SCHEMAS
from engine.record.metrics import METRICS, REPORTED
from engine.record.metrics import PERSONAL as FIGURES
from engine.record.personal_metrics import at_the_end, by_round, figures, tenth
from engine.record.run_folder import RunFolder
from engine.server.evaluation import Evaluation
from engine.sweeps.definition import Sweep
from engine.sweeps.folder import SweepFolder, TrialRecord
from fedskew.lab.run_line import summary_table
from fedskew.lab.run_pictures.folder import curves
from tests.support.small_sweeps import Alone, base
from tests.support.sweep_folders import BASE, POINTS, WARM_UP, make_run


def table(*rows: tuple[str, int, str, int, int, float]) -> Any:
    """Of (stage, round, point, client, samples, accuracy); pandas' own annotations call everything a Series."""
    columns = ["stage", "round", "point", "client", "samples", "accuracy"]
    return pd.DataFrame(rows, columns=columns).assign(loss=1.0, participant=True, reused=False)


def one_client(point: str, accuracies: dict[int, float], stage: str = "train") -> list[tuple[Any, ...]]:
    return [(stage, number, point, 0, 4, accuracy) for number, accuracy in accuracies.items()]


def test_the_last_evaluated_round_by_hand() -> None:
    """Kills: weights mixed up, an earlier round, another point's round, all clients for the worst tenth."""
    rows = table(
        ("train", 1, "post_server", 0, 5, 1.0),
        ("train", 2, "post_server", 0, 10, 0.5),
        ("train", 2, "post_server", 1, 30, 0.9),
        ("train", 2, "post_server", 2, 60, 0.1),
        ("train", 2, "fine_tuned", 0, 10, 0.6),
        ("train", 2, "fine_tuned", 1, 30, 1.0),
        ("train", 3, "received", 1, 30, 0.0),
        ("train", 3, "post_local", 1, 30, 0.7),
    )
    found = figures(rows, last=3)
    assert set(found) == set(FIGURES)
    assert found["personal_accuracy"] == pytest.approx((5 + 27 + 6) / 100)
    assert found["personal_client_accuracy"] == pytest.approx(0.5)
    assert found["personal_worst_decile_accuracy"] == pytest.approx(0.1)  # ceil(3 / 10) is one client
    assert found["personal_last10_accuracy"] == pytest.approx((1.0 + 0.38) / 2)
    assert found["fine_tuned_accuracy"] == pytest.approx(36 / 40)
    assert found["fine_tuned_client_accuracy"] == pytest.approx(0.8)
    assert found["participants_accuracy"] == pytest.approx(0.7)
    assert found["participants_std"] is None  # one round has no spread


def test_the_worst_tenth_by_hand() -> None:
    """Kills: a tenth rounded down or to the nearest, weights by samples, the best tenth, the order of the file."""
    accuracies = [0.9, 0.2, 0.8, 0.7, 0.4, 0.6, 0.5, 1.0, 0.3, 0.95, 0.85]
    rows = table(*(("train", 1, "post_server", k, 1 + 10 * k, one) for k, one in enumerate(accuracies)))
    assert figures(rows, 1)["personal_worst_decile_accuracy"] == pytest.approx((0.2 + 0.3) / 2)
    assert figures(rows[:10], 1)["personal_worst_decile_accuracy"] == pytest.approx(0.2)
    assert [tenth(count) for count in (1, 9, 10, 11, 20, 21)] == [1, 1, 1, 2, 2, 3]


def test_means_of_the_last_ten_rounds_by_hand() -> None:
    """Kills: ten evaluations for ten rounds, the eleventh from the end, ddof=0, an empty cohort as 0."""
    evaluated = {5: 0.0, 10: 0.2, 11: 0.4, 15: 0.6, 20: 0.8}
    cohort = [("train", n, "post_local", k, 1 + k, one) for n, one in evaluated.items() if n != 15 for k in (0, 1)]
    rows = table(*one_client("post_server", evaluated), *cohort, ("train", 20, "post_local", 2, 5, 0.0))
    found = figures(rows, last=20)
    assert found["personal_last10_accuracy"] == pytest.approx((0.4 + 0.6 + 0.8) / 3)
    last = 3 * 0.8 / 8  # by samples: 1 and 2 of them at 0.8, 5 at 0
    assert found["participants_accuracy"] == pytest.approx((0.4 + last) / 2)
    assert found["participants_std"] == pytest.approx((0.4 - last) / math.sqrt(2))
    assert figures(rows, last=21)["personal_last10_accuracy"] == pytest.approx((0.6 + 0.8) / 2)


def test_a_stage_without_rounds_stands_by_itself() -> None:
    """Kills: its model averaged with those of the rounds before; a round's participants that it does not have."""
    rows = table(
        *one_client("post_server", {1: 0.2, 2: 0.4}),
        *one_client("post_local", {1: 0.5, 2: 0.7}),
        *one_client("post_server", {2: 0.9}, "calibrate"),
    )
    found = figures(rows, 2, without_rounds={"calibrate"})
    assert found["personal_accuracy"] == found["personal_last10_accuracy"] == pytest.approx(0.9)
    assert found["participants_accuracy"] == pytest.approx(0.6)
    assert at_the_end(rows, "post_server")["stage"].tolist() == ["calibrate"]
    assert by_round(rows)["stage"].tolist() == ["train"] * 4 + ["calibrate"]  # the two in round 2 are two


def test_without_rows_there_are_no_figures() -> None:
    """Kills: 0 or NaN for what was not measured; an empty table that cannot be read."""
    empty = SCHEMAS["personal"].empty_table().to_pandas()
    assert figures(empty, 0) == dict.fromkeys(FIGURES)
    assert len(by_round(empty)) == len(at_the_end(empty, "post_server")) == 0
    received = figures(table(*one_client("received", {1: 0.5})), 1)
    assert received == dict.fromkeys(FIGURES)


def test_curves_agree_with_a_plain_loop() -> None:
    """Kills: groups that mix stages, rounds or points; the order of rounds lost; a tenth of another group's size."""
    rng = np.random.default_rng(0)
    places = [(stage, number, point) for stage in "ba" for number in (2, 10) for point in ("received", "post_server")]
    rows = [
        (*place, client, int(rng.integers(1, 9)), float(rng.random()))
        for place in places
        for client in rng.permutation(40)[: rng.integers(1, 40)]
    ]
    found = by_round(table(*rows))
    assert found[["stage", "round", "point"]].to_numpy().tolist() == [list(place) for place in places]
    for place, line in zip(places, found.to_dict("records"), strict=True):
        own = [(samples, accuracy) for *where, _, samples, accuracy in rows if tuple(where) == place]
        total = sum(samples for samples, _ in own)
        assert line["samples"] == total
        assert line["accuracy"] == pytest.approx(sum(samples * accuracy for samples, accuracy in own) / total)
        ranked = sorted(accuracy for _, accuracy in own)
        assert line["client_accuracy"] == pytest.approx(statistics.fmean(ranked))
        assert line["worst_decile_accuracy"] == pytest.approx(statistics.fmean(ranked[: math.ceil(len(ranked) / 10)]))
        assert line["client_std"] == pytest.approx(statistics.pstdev(ranked))
        assert math.isnan(line["macro_f1"])  # of a file that lacks it


def test_means_over_clients() -> None:
    """Kills: a mean by samples; one that takes a client of another point in."""
    rows = table(("train", 1, "post_server", 0, 10, 0.5), ("train", 1, "post_server", 1, 30, 0.9))
    found = by_round(rows.assign(macro_f1=[0.2, 0.6], balanced_accuracy=[0.4, 1.0])).iloc[0]
    assert (found["macro_f1"], found["balanced_accuracy"]) == pytest.approx((0.4, 0.7))
    assert found["client_std"] == pytest.approx(0.2)


# --- a run -----------------------------------------------------------------------------------------------------------


def test_the_summary_is_of_the_lineage(tmp_path: Path) -> None:
    """Kills: rows of a branch that leads nowhere; a figure that the summary lacks or makes up; None in a summary."""
    stages = [
        {"name": "warm-up", "rounds": 3},
        {"name": "main", "rounds": 5, "needs": ["warm-up"]},
        {"name": "aside", "rounds": 4, "needs": ["warm-up"]},
    ]
    stages = [stages[0], stages[2], stages[1]]
    run = RunFolder(make_run(tmp_path / "run", Experiment(**BASE | {"stages": stages}), personal=POINTS))
    rows: Any = run.frame("personal")
    assert set(rows["stage"]) == {"warm-up", "aside", "main"}
    expected = figures(rows[rows["stage"] != "aside"], last=8)
    summary = run.summary()
    assert {name: summary[name] for name in FIGURES} == expected
    assert summary["scope"] == "global"
    plain = RunFolder(make_run(tmp_path / "plain")).summary()
    assert not set(FIGURES) & set(plain)
    served = RunFolder(make_run(tmp_path / "served", personal=["post_server"])).summary()
    assert {name for name in FIGURES if name in served} == {name for name in FIGURES if name.startswith("personal")}


def test_accuracies_of_two_scopes_are_not_mixed(tmp_path: Path) -> None:
    """Kills: the best or the mean of ten rounds over the warm-up's global model too."""
    staged = Experiment(**BASE | {"stages": WARM_UP})
    run = RunFolder(make_run(tmp_path / "run", staged, scope="personal"))
    table: Any = run.frame("evaluations")
    table.loc[table["stage"] == "warm-up", "accuracy"] = 0.99
    table.to_parquet(run.path / "evaluations.parquet")
    summary = run.summarise(staged, {"status": "finished"})
    own = table[table["stage"] == "main"]["accuracy"]
    assert summary["scope"] == "personal"
    assert (summary["best_accuracy"], summary["best_stage"]) == (own.max(), "main")
    assert summary["last10_accuracy"] == pytest.approx(own.mean())
    assert summary["stage_accuracy"]["warm-up"] == 0.99


def test_the_end_of_a_run_on_the_terminal(tmp_path: Path) -> None:
    """Kills: figures that a run has and does not show; fractions; personal accuracies that pass for the global one, or
    that are told twice, as the headline and as a figure."""
    shown = {}
    for name, fields in {"own": {"personal": POINTS, "scope": "personal"}, "plain": {}}.items():
        run = RunFolder(make_run(tmp_path / name, **fields))
        told = io.StringIO()
        Console(file=told, width=160).print(summary_table(run.summary(), run))
        shown[name] = told.getvalue()
    rows = dict(re.findall(r"│ (.*?) +│ (.*?) +│", shown["own"]))
    assert rows["test accuracy, personal models"] == f"{100 * figure_of(tmp_path, 'accuracy'):.2f} %"
    headline = {"personal_accuracy", "personal_last10_accuracy"}  # the first rows, in other words
    assert rows["mean of the last 10 rounds"] == f"{100 * figure_of(tmp_path, 'last10_accuracy'):.2f} %"
    assert not rows.keys() & {METRICS[name].short for name in headline}
    for name in FIGURES.keys() - headline:
        assert rows[METRICS[name].short] == f"{100 * figure_of(tmp_path, name):.2f} %"
    assert "personal" not in shown["plain"] and "test accuracy " in shown["plain"]


def figure_of(folder: Path, name: str) -> float:
    return RunFolder(folder / "own").summary()[name]


@pytest.mark.parametrize("scope", ["global", "personal"])
def test_the_picture_of_a_run(tmp_path: Path, scope: str) -> None:
    """Kills: a curve of other rows than its label says; one curve drawn twice; personal models called global."""
    measured = Experiment(**BASE).replace({"evaluation.local_every": 1})
    run = RunFolder(make_run(tmp_path / "run", measured, personal=POINTS, scope=scope))
    picture = curves(run)
    accuracy, loss = picture.figure.axes
    drawn = {str(line.get_label()): np.asarray(line.get_ydata()) for line in accuracy.lines}
    rounds = by_round(run.frame("personal"))
    for point, label in (("post_server", "personal models"), ("fine_tuned", "personal models, fine-tuned")):
        np.testing.assert_allclose(drawn[label], 100 * rounds[rounds["point"] == point]["accuracy"])
    assert len(accuracy.lines) == len(drawn) == 3 + (scope == "global")  # with the local models
    if scope == "global":
        np.testing.assert_allclose(drawn["global model"], 100 * run.frame("evaluations")["accuracy"])
    headline = {"global": "global model, test", "personal": "personal models, test"}[scope]
    assert next(line.get_label() for line in loss.lines) == headline
    assert len(picture.png) > 10_000


# --- reports to Tune -------------------------------------------------------------------------------------------------


def test_a_trial_reports_the_running_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: figures that come at the end alone, of rounds to come, of the round before; a failed trial's figures."""
    evaluate = Evaluation.after

    def one_by_one(self: Evaluation, at: Position, *given: Any) -> Any:
        due = self.schedule.headline(at)
        for point in ("post_local", "post_server") if due else ():
            for client in range(3):
                row = {"client": client, "point": point, "participant": True, "samples": 1 + client, "loss": 1.0}
                accuracy = at.round * (1 + client) / 40
                self._personal.add({**row, "stage": "train", "round": at.round, "accuracy": accuracy})
        return evaluate(self, at, *given)

    monkeypatch.setattr(Evaluation, "after", one_by_one)
    experiment = base(**{"rounds": 6, "execution.actors": 0, "evaluation.every": 2})
    SweepFolder(tmp_path).write(TrialRecord("00000", {}, 0))
    trial = Alone(tmp_path, experiment, personal=True)
    reports = [trial.step() for _ in range(3)]
    rows = RunFolder(tmp_path / "trials/00000").frame("personal")
    assert [report["round"] for report in reports] == [2, 4, 6]
    for report in reports:
        expected = figures(rows[rows["round"] <= report["round"]], report["round"])
        told = {name: report[name] for name in FIGURES}
        assert told == pytest.approx({n: math.nan if v is None else v for n, v in expected.items()}, nan_ok=True)
        assert told["personal_accuracy"] == pytest.approx(report["round"] * (1 + 4 + 9) / 6 / 40)
    assert reports[-1]["done"] and math.isnan(reports[0]["participants_std"]) and reports[2]["participants_std"] > 0
    again = Alone(tmp_path, experiment, personal=True)  # as ``fedskew resume`` has it: from what is on disk
    for report in reports:
        old = again.step()
        assert {name: old[name] for name in FIGURES} == pytest.approx({n: report[n] for n in FIGURES}, nan_ok=True)


def test_a_trial_reports_one_scope(tmp_path: Path) -> None:
    """Kills: the best or the mean of ten rounds over the warm-up's global model too, in what Tune decides by; scopes
    that are known only of rounds on disk; a null loss in a report."""
    stages = [
        {"name": "warm-up", "rounds": 3, "algorithm": {"name": "fedavg"}},
        {"name": "own", "rounds": 2, "needs": ["warm-up"], "algorithm": {"name": "fedper"}},
    ]
    experiment = Experiment(**{**base(**{"execution.actors": 0}).to_mapping(), "stages": stages})
    SweepFolder(tmp_path).write(TrialRecord("00000", {}, 0))
    trial, run = Alone(tmp_path, experiment, step=1, personal=True), RunFolder(tmp_path / "trials/00000")
    for report in (trial.step() for _ in range(5)):
        rows: Any = run.frame("evaluations")
        own = rows[rows["scope"] == rows["scope"].iloc[-1]]["accuracy"]
        assert len(own) == (report["round"] if report["round"] <= 3 else report["round"] - 3)
        assert report["best_accuracy"] == own.max()
        assert report["last10_accuracy"] == pytest.approx(own.mean())
        assert isinstance(report["loss"], float)
    summary = run.summary()
    assert (report["best_accuracy"], report["last10_accuracy"]) == tuple(
        pytest.approx(summary[name]) for name in ("best_accuracy", "last10_accuracy")
    )
    again = Alone(tmp_path, experiment, step=1, personal=True)  # from what is on disk
    assert [again.step() for _ in range(5)][-1]["best_accuracy"] == summary["best_accuracy"]
    trial._scores.rows[-1]["loss"] = None  # not finite
    assert math.isnan(trial._report(5, done=False)["loss"])


def test_a_trial_that_fails_has_all_keys(tmp_path: Path) -> None:
    """Kills: a report without the sweep's metric, over which Tune ends the whole sweep."""
    experiment = base(**{"rounds": 2, "execution.actors": 0, "local.lr": 1e30})
    SweepFolder(tmp_path).write(TrialRecord("00000", {}, 0))
    report = Alone(tmp_path, experiment, personal=True).step()
    assert report["failed"] and all(math.isnan(report[name]) for name in REPORTED)
    assert set(FIGURES) <= set(REPORTED)


def test_a_sweep_by_a_figure_of_personal_models() -> None:
    """Kills: a metric that is refused, or goes the wrong way; every sweep reading the tables of clients."""
    assert Sweep(base(), {}, metric="participants_accuracy").needs_personal
    assert Sweep(base(), {}, stop={"personal_accuracy": 0.5}).needs_personal
    assert Sweep(base(), {}, metric="participants_std", mode="min").needs_personal
    assert not Sweep(base(), {}, stop={"accuracy": 0.5}).needs_personal
    with pytest.raises(ConfigError, match="mode=max: is not the way to a better participants_std"):
        Sweep(base(), {}, metric="participants_std")
    with pytest.raises(ConfigError, match="is no metric of which more is better"):
        Sweep(base(), {}, stop={"participants_std": 0.1})
