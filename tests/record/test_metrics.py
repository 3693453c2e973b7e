"""The table of metrics, against what is written, reported and documented."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from engine.record import metrics
from engine.record.fields import check
from engine.record.metrics import ALL, METRICS, PERSONAL
from engine.record.summary import KIND
from engine.results.loading import load
from fedskew.lab.diagnosis.diagnosis import Diagnosis
from fedskew.lab.images.generated import Generated
from tests.support.loops import each
from tests.support.sweep_folders import POINTS, make_sweep

FACTS = {"label_entropy", "step_label_entropy", "label_hellinger", "label_jensen_shannon", "label_total_variation"}
FACTS |= {"effective_classes", "epsilon"}  # what a driver adds to a summary


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swept")
    cost = {"cost": np.arange(100.0).reshape(10, 10)}
    return make_sweep(folder, seeds=(0,), axes=(), rounds=3, personal=POINTS, matrices=lambda *_: cost)


def test_names_and_columns_are_used_once() -> None:
    """Kills: a metric that hides another one; two columns of one table in one place."""
    columns = [metric.column for metric in ALL if metric.column is not None]
    assert len(METRICS) == len(ALL)
    assert sorted(columns) == list(range(1, len(columns) + 1))


@each("name", METRICS)
def test_a_metric_says_what_it_is(name: str) -> None:
    """Kills: a metric without a sentence; percent of what is no fraction; a mode that a reader takes for the other."""
    metric = METRICS[name]
    assert metric.label and metric.meaning.endswith(".")
    assert (metric.unit == "%") == (metric.scale == 100.0)
    assert (metric.unit == "") <= (metric.scale == 1.0)
    assert not (metric.whole and metric.unit)
    if name.endswith("accuracy"):
        assert (metric.unit, metric.better) == ("%", "max")
    if name.endswith("_std"):
        assert (metric.unit, metric.better) == ("%", "min")


def test_what_a_summary_is_said_to_have_it_has(swept: Path) -> None:
    """Kills: a metric that no summary holds under its name; a figure of personal models that is no metric."""
    summary = json.loads((swept / "trials" / "00000" / "summary.json").read_text())
    told = set(metrics.names("summary.json")) - FACTS
    assert told <= summary.keys()
    assert all(isinstance(summary[name], int | float) for name in told - {"local_last10_accuracy", "local_gap"})
    assert set(PERSONAL) <= told


def test_local_models_may_be_the_better_ones() -> None:
    """Kills: a run that cannot be read again because its local models lack nothing."""
    check({"local_gap": -0.1}, KIND)
    with pytest.raises(ValueError, match="local_last10_accuracy must be at least"):
        check({"local_last10_accuracy": -0.1}, KIND)


def test_trials_have_the_metrics_as_columns(swept: Path) -> None:
    """Kills: a column of trials.parquet without a line in the table; a line without a column."""
    results = load(swept)
    words = {"trial", "status", "reason", "seed", "class_accuracy", "scope", "breaks_privacy", "weights_sha256"}
    words |= {"parent", "schedule"}
    wanted = (*metrics.OF_RUN, *metrics.names("matrices.parquet"))
    assert set(results.trials) - words - {"folder"} == set(wanted)
    assert set(metrics.by_column()) <= set(results.trials) | {*metrics.SIMULATED}
    assert results.metrics == wanted


def test_what_diagnosis_and_images_come_to_are_metrics() -> None:
    """Kills: a figure that is written beside a run and that no sweep may ask for."""
    for kind, source in ((Diagnosis, "fedskew diagnose"), (Generated, "fedskew images")):
        told = metrics.names(source)  # type: ignore[arg-type]
        text = inspect.getsource(kind.figures.fget)
        assert told and all(f'"{name}": ' in text for name in told)


def test_the_page_is_the_table() -> None:
    """Kills: a page that says something else than the reports."""
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert metrics.markdown() in page
    assert {field.name for field in fields(metrics.Metric)} >= {"name", "label", "short", "unit", "better", "source"}
