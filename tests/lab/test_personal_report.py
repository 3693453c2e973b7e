"""Personal models in trials tables, figures and reports."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from engine.base.errors import RunFolderError
from engine.record.metrics import PERSONAL as FIGURES
from engine.record.personal_metrics import by_round
from engine.record.run_folder import RunFolder
from engine.results import load
from engine.results.settings import better_way
from fedskew.lab import figures
from fedskew.lab.comparing.ranking import settings_of
from fedskew.lab.quantities import quantity
from fedskew.lab.report import write
from tests.support.report_pages import page_of
from tests.support.sweep_folders import MU, POINTS, make_run, make_sweep

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two mu, of which 0.1 has no global model, and two seeds; trial 1 failed. Only the report writes to it."""
    return make_sweep(
        tmp_path_factory.mktemp("personal") / "sweep",
        axes=[MU | {"values": [0.0, 0.1]}],
        seeds=(0, 1),
        failed=[1],
        personal=POINTS,
        scope=lambda setting: "personal" if setting["mu"] else "global",
        metric="participants_accuracy",
        claims=[{"text": "More", "source": "", "better": {"mu": 0.1}, "worse": {"mu": 0.0}, "metric": name,
                 "larger_is_better": better_way(name) == "max"} for name in FIGURES],
        tables=[{"title": "T", "rows": ["mu"], "columns": [], "metric": "fine_tuned_client_accuracy"}],
    )  # fmt: skip


def test_figures_of_a_trial(swept: Path) -> None:
    """Kills: a figure that is no metric, or another's; percent for fractions; personal.parquet read by ``load``."""
    results: Any = load(swept)
    for number, row in enumerate(results.trials.to_dict("records")):
        if row["status"] == "failed":
            assert all(math.isnan(row[name]) for name in FIGURES) and row["scope"] is None
            continue
        summary = json.loads((swept / row["folder"] / "summary.json").read_text())
        assert {name: row[name] for name in FIGURES} == {name: summary[name] for name in FIGURES}
        assert row["scope"] == ("global" if number < 2 else "personal")
        assert math.isnan(row["worst_decile_accuracy"]) == (row["scope"] == "personal")
    for name in FIGURES:
        assert (load(swept, name).mode == "min") == name.endswith("_std")
        assert quantity(name).unit == "%" and quantity(name).text(0.5) == "50.0"
    assert quantity("personal_accuracy").title == "accuracy of personal models (%)"
    assert quantity("personal_last10_accuracy").label == "accuracy of personal models, mean of the last 10 rounds"


def test_a_table_that_is_not_read_unless_asked_for(tmp_path: Path) -> None:
    """Kills: 500 tables of clients read for a trials table; a traceback where one is broken."""
    run = make_run(tmp_path / "run", personal=["post_server"])
    (run / "personal.parquet").write_bytes(b"not parquet")
    results = load(run)
    assert results.trials["personal_accuracy"].notna().all()
    with pytest.raises(RunFolderError, match=r"personal\.parquet"):
        results.personal_curves()


def test_curves_of_clients(swept: Path) -> None:
    """Kills: a curve of another trial or point; a failed trial that has one; clients of an earlier round."""
    results: Any = load(swept)
    curves, clients = results.personal_curves(), results.personal_clients()
    assert curves.columns.tolist()[:6] == ["trial", "seed", "mu", "stage", "round", "point"]
    assert len(curves) == 3 * 12 * len(POINTS)
    for row in results.trials.to_dict("records"):
        if row["status"] == "failed":
            assert row["trial"] not in [*curves["trial"], *clients["trial"]]
            continue
        rows = RunFolder(swept / row["folder"]).frame("personal")
        own = curves[curves["trial"] == row["trial"]].reset_index(drop=True)
        pd.testing.assert_frame_equal(own[by_round(rows).columns], by_round(rows))
        assert set(own["mu"]) == {row["mu"]} and set(own["seed"]) == {row["seed"]}
        last = rows[(rows["round"] == 12) & (rows["point"] == "fine_tuned")]["accuracy"].tolist()
        mine = clients[(clients["trial"] == row["trial"]) & (clients["point"] == "fine_tuned")]
        assert mine["accuracy"].tolist() == last and mine["client"].tolist() == list(range(20))


def test_accuracies_of_two_scopes_are_not_mixed(tmp_path: Path) -> None:
    """Kills: a target that the warm-up's global model has reached; the worst tenth by shares of classes of models that
    are personal; curves without the scope."""
    folder = make_sweep(
        tmp_path / "sweep", axes=[], seeds=[0], stages=True, scope=lambda _: "personal", target_accuracy=0.7
    )
    path = folder / "trials/00000/evaluations.parquet"
    table: Any = pd.read_parquet(path)
    table.loc[table["stage"] == "warm-up", "accuracy"] = 0.99
    table.to_parquet(path)
    results: Any = load(folder)
    row = results.trials.iloc[0]
    assert row["rounds_to_target"] == table[(table["stage"] == "main") & (table["accuracy"] >= 0.7)]["round"].min()
    assert (row["scope"], row["accuracy"]) == ("personal", table["accuracy"].iloc[-1])
    assert math.isnan(row["worst_decile_accuracy"])
    assert results.curves()["scope"].tolist() == ["global"] * 5 + ["personal"] * 7


def test_a_curve_is_of_one_scope(tmp_path: Path) -> None:
    """Kills: one line through the warm-up's global model and clients' own; rounds that are left out and not said to be;
    a scope that is left out where it is the only one."""
    for scope, first in (("personal", 6), ("global", 1)):
        folder = make_sweep(tmp_path / scope, seeds=[0], axes=[], stages=True, scope=lambda _, one=scope: one)
        results: Any = load(folder)
        drawings, frame = figures.curves(results, settings_of(results))
        assert sorted(set(frame["round"])) == list(range(first, 13))
        evaluations = results.curves().set_index("round")["accuracy"]
        drawn = frame[frame["quantity"] == "accuracy"].set_index("round")["mean"]
        assert drawn.tolist() == pytest.approx(evaluations[drawn.index].tolist())
        assert ["are left out" in drawing.caption for drawing in drawings] == [scope == "personal"] * len(drawings)


@pytest.mark.parametrize("metric", FIGURES)
def test_the_curve_behind_a_figure_is_drawn(swept: Path, metric: str) -> None:
    """Kills: the curve of the headline, of another point or of another mean; a panel of losses beside it."""
    results: Any = load(swept, metric)
    figure = FIGURES[metric]
    drawings, frame = figures.curves(results, settings_of(results))
    assert [drawing.name for drawing in drawings] == [f"curves-{figure.point}"]
    assert figure.label[1:] in drawings[0].caption
    curves = results.personal_curves()
    for (mu, number), part in frame.groupby(["mu", "round"]):
        wanted = curves[(curves["mu"] == mu) & (curves["round"] == number) & (curves["point"] == figure.point)]
        assert part["mean"].item() == pytest.approx(wanted[figure.column].mean())


def test_the_distribution_over_clients(swept: Path) -> None:
    """Kills: one seed for both, a mean over seeds of the ranks, another point, accuracies that do not rise."""
    results: Any = load(swept)
    served, tuned = figures.client_accuracy(results, settings_of(results))
    clients = results.personal_clients()
    for drawing, point in ((served, "post_server"), (tuned, "fine_tuned")):
        own = clients[(clients["mu"] == 0.1) & (clients["point"] == point)]["accuracy"]
        assert len(own) == 40
        steps = {line.get_label(): line.get_data() for line in drawing.figure.axes[0].patches}  # type: ignore[attr-defined]
        np.testing.assert_allclose(steps["0.1"].values, 100 * np.sort(own))
        np.testing.assert_allclose(steps["0.1"].edges, np.linspace(0, 100, 41))
        assert len(steps["0"].values) == 20  # one of its two trials failed


def test_the_report_says_whose_accuracy_it_is(swept: Path, tmp_path: Path) -> None:
    """Kills: accuracies of personal models that pass for the global model's; the words where all are global."""
    write(swept)
    page = page_of(swept)
    said = "each client's on its own test rows, in 2 of 3 trials; not to be compared with the others', of the global"
    text = " ".join("".join(page.text).split())
    assert "of personal models" in text and said in text
    head, rows = page.table("trials")
    assert [row[head.index("scope")] for row in rows] == ["global", "", "personal", "personal"]
    shown = [row[head.index("participants (%)")] for row in rows]
    trials = load(swept).trials["participants_accuracy"]
    assert shown == ["" if math.isnan(value) else f"{100 * value:.1f}" for value in trials]
    names = {path.name for path in (swept / "report").glob("*.png")}
    assert {"curves-post_local.png", "client-accuracy-post_server.png", "client-accuracy-fine_tuned.png"} <= names
    other = make_run(tmp_path / "other", rounds=3)
    write(other)
    assert "of personal models" not in "".join(page_of(other).text)
    alone = make_run(tmp_path / "alone", rounds=3, scope="personal")
    write(alone)
    assert "accuracyof personal modelseach client's on its own test rows" in "".join(page_of(alone).text)
