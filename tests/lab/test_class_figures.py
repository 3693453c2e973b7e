"""Figures of single classes: by hand, as columns that a sweep asks for, in a report, as reports to Tune."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from engine.base.errors import ConfigError
from engine.record.run_folder import RunFolder
from engine.results import load, write_trials
from engine.results.class_figures import EXAMPLES, class_figure, is_class_figure
from engine.sweeps.definition import Sweep
from engine.sweeps.folder import SweepFolder, TrialRecord
from fedskew.lab.comparing.comparisons import paper_frame
from fedskew.lab.comparing.verdicts import judge
from fedskew.lab.quantities import quantity
from fedskew.lab.report.folder import write
from tests.support.small_sweeps import Alone, base
from tests.support.sweep_folders import MU, make_run, make_sweep

ONE, THREE, STD = EXAMPLES


def test_by_hand() -> None:
    """Kills: classes counted from 1, a mean by samples, n - 1, a class without test data taken for 0 or left out."""
    accuracies = [0.5, 0.25, 0.75, None, 1.0, 0.0, 0.5]
    assert class_figure(ONE, accuracies) == 0.25
    assert class_figure(THREE, accuracies) == pytest.approx(0.75)
    assert class_figure("class_accuracy[0,4]", np.array([0.5, 1, 1, 1, 0.1])) == pytest.approx(0.3)
    assert class_figure(STD, accuracies) == pytest.approx(np.std([0.5, 0.25, 0.75, 1, 0, 0.5]))
    assert class_figure(STD, [0.5, None]) == 0
    for name in ("class_accuracy[3]", "class_accuracy[1,3]", "class_accuracy[7]", "class_accuracy[1,10]"):
        assert math.isnan(class_figure(name, accuracies))
    assert all(math.isnan(class_figure(name, none)) for name in EXAMPLES for none in (None, [], [None] * 9))


def test_names_that_are_none() -> None:
    """Kills: a name that means another one's figure; a class twice, which would weigh double."""
    assert all(map(is_class_figure, EXAMPLES))
    wrong = ("", "[]", "[-1]", "[1,]", "[,1]", "[1, 2]", "[01]", "[1,1]", "[1][2]", "[a]", "[1]x")
    assert not any(is_class_figure(f"class_accuracy{end}") for end in wrong)
    assert not is_class_figure("accuracy[1]")


def test_they_are_called_by_their_classes() -> None:
    """Kills: a fraction for a percentage; two figures of one name."""
    assert quantity(ONE).title == "test accuracy on class 1 (%)"
    assert quantity(THREE).title == "mean test accuracy on classes 2, 4 and 6 (%)"
    assert quantity(STD).title == "standard deviation of test accuracy over classes (%)"
    assert [quantity(name).short for name in EXAMPLES] == ["class 1 (%)", "classes 2, 4, 6 (%)", "std over classes (%)"]
    assert quantity(ONE).difference(0.012, unit=True) == "+1.2 points"


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 mu x 3 seeds, trial 1 failed; asks for one figure by a claim, one by a table, one by its metric."""
    return make_sweep(
        tmp_path_factory.mktemp("classes") / "sweep",
        axes=[MU],
        failed=[1],
        client_rows=False,
        metric=THREE,
        claims=[{"text": "More", "source": "", "better": {"mu": 0.1}, "worse": {"mu": 0.01}, "metric": ONE}],
        tables=[{"title": "Spread", "rows": ["mu"], "columns": [], "metric": STD}],
    )


def test_a_trials_table_has_those_that_are_asked_for(swept: Path) -> None:
    """Kills: an earlier round's accuracies, another trial's, a failed trial's; columns that nobody asked for."""
    results: Any = load(swept)
    assert results.trials.columns.tolist()[-3:] == [THREE, STD, ONE]
    for row in results.trials.to_dict("records"):
        if row["status"] == "failed":
            assert all(math.isnan(row[name]) for name in EXAMPLES)
            continue
        last = RunFolder(swept / row["folder"]).frame("evaluations")["class_accuracy"].iloc[-1]
        assert [row[name] for name in EXAMPLES] == pytest.approx([last[1], last[[2, 4, 6]].mean(), last.std()])
    other: Any = load(swept, "class_accuracy[9]")
    assert (other.metric, other.mode) == ("class_accuracy[9]", "max")
    assert set(other.trials.columns) - set(results.trials.columns) == {"class_accuracy[9]"}
    assert load(swept, STD).mode == "min"
    with pytest.raises(ConfigError, match=r"metric=class_accuracy\[1,1\]: is no figure of a trial"):
        load(swept, "class_accuracy[1,1]")


@pytest.mark.slow
def test_claims_and_tables_of_them(swept: Path) -> None:
    """Kills: the whole accuracy in place of a class's; a figure that the report cannot name."""
    results: Any = load(swept)
    trials = results.trials[results.trials["status"] == "finished"].set_index(["mu", "seed"])
    pairs = trials.loc[0.1][ONE] - trials.loc[0.01][ONE]
    [verdict] = judge(results)
    assert verdict.effect == pytest.approx(pairs.mean()) and verdict.seeds == (0, 1, 2)
    table: Any = paper_frame(results, results.tables[0])
    assert table["mean"].tolist() == pytest.approx(trials.groupby("mu")[STD].mean().tolist())
    assert pd.read_parquet(write_trials(results))[ONE].tolist() == pytest.approx(
        results.trials[ONE].tolist(), nan_ok=True
    )
    page = write(swept).read_text()
    assert "ean test accuracy on classes 2, 4 and 6 (%)" in page
    assert "tandard deviation of test accuracy over classes (%)" in page


def test_a_single_run_has_them_on_request(tmp_path: Path) -> None:
    """Kills: columns without a sweep that asks."""
    folder = make_run(tmp_path / "run")
    assert not set(EXAMPLES) & set(load(folder).trials.columns)
    assert load(folder, ONE).trials[ONE].notna().all()


def test_a_sweep_may_be_decided_by_one() -> None:
    """Kills: a metric that is refused, or goes the wrong way; a figure that trials would not report."""
    assert Sweep(base(), {}, metric=ONE).by_class == (ONE,)
    assert Sweep(base(), {}, metric=STD, mode="min", stop={THREE: 0.5}).by_class == (STD, THREE)
    assert Sweep(base(), {}, metric="loss", mode="min", stop={"accuracy": 0.5}).by_class == ()


def test_trials_report_them(tmp_path: Path) -> None:
    """Kills: a report without the sweep's metric, over which Tune ends the sweep; figures of the end alone; a failed
    trial's figures.
    """
    experiment = base(**{"rounds": 4, "execution.actors": 0})
    SweepFolder(tmp_path).write(TrialRecord("00000", {}, 0))
    trial = Alone(tmp_path, experiment, step=1, by_class=EXAMPLES)
    reports = [trial.step() for _ in range(4)]
    told = RunFolder(tmp_path / "trials/00000").frame("evaluations")["class_accuracy"]
    for report, accuracies in zip(reports, told, strict=True):
        assert [report[name] for name in EXAMPLES] == [class_figure(name, accuracies) for name in EXAMPLES]
    assert len({report[STD] for report in reports}) == 4
    again = Alone(tmp_path, experiment, step=1, by_class=EXAMPLES)  # from what is on disk
    assert [again.step()[STD] for _ in range(4)] == [report[STD] for report in reports]
    SweepFolder(tmp_path / "lost").write(TrialRecord("00000", {}, 0))
    failed = Alone(tmp_path / "lost", experiment.replace({"local.lr": 1e30}), by_class=EXAMPLES).step()
    assert failed["failed"] and all(math.isnan(failed[name]) for name in EXAMPLES)
