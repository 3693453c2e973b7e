"""Metrics of a user's own: what a run records of them, and where they may be asked for by name."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedskew
from engine.base.errors import ConfigError, RunError
from engine.base.evaluated import METRICS
from engine.experiment import Experiment
from engine.record import parts
from engine.record.run_folder import RunFolder
from engine.results import load
from engine.results.claims import Claim, PaperTable
from engine.results.settings import better_way
from engine.run.preparing import prepare
from engine.run.reuse import segments_of
from engine.sweeps.definition import Sweep
from engine.sweeps.folder import SweepFolder, TrialRecord
from tests.support.small_sweeps import Alone, base
from tests.support.tiny import Driven, drive, experiment

OWN = {"evaluation": {"metrics": ["worst_recall", "top2_accuracy", "spread"]}}


def worst_recall(confusion: np.ndarray) -> float:
    return (np.diag(confusion) / confusion.sum(axis=1)).min()


def top2_accuracy(scores: torch.Tensor, labels: torch.Tensor, k: int = 2) -> torch.Tensor:
    return (scores.topk(k, dim=1).indices == labels[:, None]).any(dim=1)


def spread(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return scores.std(dim=1) + 0 * labels


@pytest.fixture(autouse=True, scope="module")
def known() -> Iterator[None]:
    before = dict(METRICS)
    fedskew.metric("worst_recall")(worst_recall)
    fedskew.metric("top2_accuracy")(top2_accuracy)
    fedskew.metric("spread", better="min")(spread)
    yield
    METRICS.clear()
    METRICS.update(before)


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory, known: None) -> Driven:
    return drive(tmp_path_factory.mktemp("own"), experiment(**OWN))


def own(folder: Path) -> list[dict[str, float]]:
    return [dict(row or ()) for row in RunFolder(folder).frame("evaluations")["own"]]


def test_they_are_recorded(driven: Driven) -> None:
    """Kills: a transposed matrix, a sum in place of a mean, scores of a softmax or of one batch alone."""
    rows: Any = RunFolder(driven.folder.path).frame("evaluations")
    assert [found["worst_recall"] for found in own(driven.folder.path)] == rows["worst_class_accuracy"].tolist()
    driver = driven.driver
    net, server = driver.pool._workers[0].net, driver.lineage.server  # type: ignore[attr-defined]
    net.load(server["weights"], server["buffers"])
    test = driver.pool._workers[0].test  # type: ignore[attr-defined]
    x, y = test.batch(torch.arange(len(test)))
    scores = net.model(x).detach().double()
    last = own(driven.folder.path)[-1]
    assert last["top2_accuracy"] == float(top2_accuracy(scores, y).double().mean()) > rows["accuracy"].iloc[-1]
    assert last["spread"] == pytest.approx(float(scores.std(dim=1).mean()))


def test_any_batch_and_no_bit_of_the_run_changes(driven: Driven, tmp_path: Path) -> None:
    """Kills: a mean over batches in place of rows; a metric that moves a weight or another column."""
    small = drive(tmp_path / "small", experiment(evaluation={**OWN["evaluation"], "batch_size": 7}))
    assert own(small.folder.path)[-1] == pytest.approx(own(driven.folder.path)[-1])
    plain = drive(tmp_path / "plain", experiment())
    assert plain.sha == driven.sha
    assert all(not found for found in own(plain.folder.path))
    columns = ["accuracy", "loss", "macro_f1", "brier", "ece"]
    one, other = (RunFolder(one.folder.path).frame("evaluations")[columns] for one in (plain, driven))
    assert one.equals(other)


def test_what_they_are_part_of(driven: Driven) -> None:
    """Kills: rows with own metrics taken over by a run that asks for others; a run whose code nobody knows."""
    plain = experiment()
    assert experiment(evaluation={"metrics": []}).digest == plain.digest != experiment(**OWN).digest
    keys = [
        segments_of(one, one.chain[0], one.spans[0], {}, "")[0].key
        for one in (plain, experiment(**OWN), experiment(evaluation={"metrics": ["spread"]}))
    ]
    assert len({*keys}) == 3 and len({key.split("-")[0] for key in keys}) == 1
    found = parts.origins(experiment(**OWN))["metrics.spread"]
    assert (found["name"], found["origin"]) == ("spread", "file")
    assert parts.section_of("metrics.spread") == "metric"


def test_results_have_them_without_their_code(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a figure that is gone with the file that it came from."""
    monkeypatch.setattr(METRICS, "find", lambda name: pytest.fail("it is computed again"))
    results = load(driven.folder.path, "top2_accuracy")
    last = own(driven.folder.path)[-1]
    assert {name: results.trials[name].iloc[0] for name in last} == last
    assert results.metrics[-3:] == tuple(OWN["evaluation"]["metrics"])
    frame = fedskew.load_results(driven.folder.path).trials
    assert frame["spread"].iloc[0] == last["spread"]


def test_a_sweep_may_be_decided_by_one(tmp_path: Path) -> None:
    """Kills: a metric that trials do not report, that goes the wrong way, or that no trial would have."""
    small = base(**{"rounds": 3, "execution.actors": 0, "evaluation.metrics": ["spread", "top2_accuracy"]})
    claim = Claim("c", "s", {"mu": 1}, {"mu": 0}, metric="top2_accuracy")
    table = PaperTable("t", ("mu",), (), metric="spread")
    space = {"mu": fedskew_grid([0, 1])}
    Sweep(small, space, metric="spread", mode="min", stop={"top2_accuracy": 0.9}, claims=(claim,), tables=(table,))
    with pytest.raises(ConfigError, match="mode=max: is not the way to a better spread"):
        Sweep(small, space, metric="spread")
    told = r"is not reported; set evaluation.metrics=\[spread,top2_accuracy,worst_recall\] in the base"
    with pytest.raises(ConfigError, match=told):
        Sweep(small, space, metric="worst_recall")
    with pytest.raises(ConfigError, match=r"claims=worst_recall: is no figure of a trial; set evaluation.metrics="):
        Sweep(small, space, claims=(Claim("c", "s", {"mu": 1}, {"mu": 0}, metric="worst_recall"),))
    SweepFolder(tmp_path).write(TrialRecord("00000", {}, 0))
    trial = Alone(tmp_path, small, step=1)
    reports = [trial.step() for _ in range(3)]
    told = own(tmp_path / "trials/00000")
    assert [{name: report[name] for name in told[0]} for report in reports] == told
    again = Alone(tmp_path, small, step=1)  # from what is on disk
    assert again.step()["spread"] == told[0]["spread"]
    assert [better_way(name) for name in ("spread", "worst_recall", "nobodys")] == ["min", "max", None]


def fedskew_grid(values: list[Any]) -> Any:
    from ray import tune

    return tune.grid_search(values)


def test_patience_for_one(tmp_path: Path) -> None:
    """Kills: a rule that does not find the figure of a run that is under way, or of one that is opened again."""
    rule = {"patience": 1, "min_delta": 99.0, "metric": "spread"}
    config = experiment(rounds=6, stop=rule, **OWN)
    summary = drive(tmp_path, config).summary
    assert (summary["stopped_by"], summary["stopped_after"]) == ("patience", 2)
    with pytest.raises(ConfigError, match=r"stop.metric=spread: is no figure .*; set evaluation.metrics=\[spread\]"):
        experiment(stop=rule)


def test_what_is_refused(tmp_path: Path) -> None:
    """Kills: a traceback out of a run, a metric that nobody would find."""
    for names, told in (
        (["sprea"], r"evaluation.metrics=sprea: is not a known metric; did you mean 'spread'.*--with"),
        (["spread", "spread"], "names one twice"),
        ("spread", "must be a list of metrics of your own"),
    ):
        with pytest.raises(ConfigError, match=told):
            Experiment.from_mapping({"evaluation": {"metrics": names}})
    for function in (lambda scores: 0, lambda confusion, labels: 0, lambda: 0):
        with pytest.raises(ConfigError, match=r"metric.name=odd: takes neither confusion alone nor scores and labels"):
            fedskew.metric("odd")(function)
    fedskew.metric("macro_f1")(spread)
    with pytest.raises(ConfigError, match=r"evaluation.metrics=macro_f1: is a metric of fedskew's own"):
        prepare(experiment(evaluation={"metrics": ["macro_f1"]}), tmp_path / "ours", overwrite=False)
    fedskew.metric("mean_alone")(lambda scores, labels: scores.mean())
    fedskew.metric("divides")(lambda confusion: 1 / 0)
    fedskew.metric("endless")(lambda confusion: math.inf)
    for name, told in (("mean_alone", r"metric mean_alone gives shape \[\]"), ("divides", "metric divides fails")):
        with pytest.raises(RunError, match=told):
            drive(tmp_path / name, experiment(rounds=1, evaluation={"metrics": [name]}))
    endless = drive(tmp_path / "endless", experiment(rounds=1, evaluation={"metrics": ["endless"]}))
    assert own(endless.folder.path) == [{"endless": None}]
    assert json.loads((endless.folder.path / "summary.json").read_text())["accuracy"] > 0
