"""Figures of single classes and of pairs of classes in a report: which there are, and the numbers behind them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.results import load
from fedskew.lab import figures
from fedskew.lab.comparing.ranking import settings_of
from fedskew.lab.report import write
from tests.support.report_pages import check_self_contained, page_of, small
from tests.support.sweep_folders import ALPHA, MU

pytestmark = pytest.mark.slow

TWO = MU | {"values": [0.0, 0.1]}


def claim(metric: str) -> dict[str, Any]:
    sides = {"better": {"mu": 0.1}, "worse": {"mu": 0.0}, "larger_is_better": metric != "class_std"}
    return {"text": metric, "source": "", "metric": metric, **sides}


def drawn(folder: Path) -> dict[str, Any]:
    """The drawings of matrices, by name."""
    results = load(folder)
    settings = settings_of(results)
    return {drawing.name: drawing for drawing in figures.matrix_maps(results, settings)[0]}


# --- classes ------------------------------------------------------------------------------------------


def test_cells_are_means_over_seeds(tmp_path: Path) -> None:
    """Kills: a cell of another setting, class or seed; a trial that failed, or a setting that is the best for it."""
    made = small(tmp_path / "sweep", axes=(TWO, ALPHA), seeds=(0, 1, 2), failed=[11])
    results = load(made)
    settings = settings_of(results)
    (drawing,) = figures.class_accuracy(results, settings)
    axes = drawing.figure.axes[0]
    rows = [text.get_text() for text in axes.get_yticklabels()]
    cells = {text.get_position(): text.get_text() for text in axes.texts}
    assert len(cells) == 4 * 10
    for setting in settings:
        finished = [row["class_accuracy"] for row in setting.trials if row["status"] == "finished"]
        assert len(finished) == (2 if setting.values == {"mu": 0.1, "alpha": 0.5} else 3)
        for number, mean in enumerate(np.mean(finished, axis=0)):
            assert cells[number, rows.index(setting.label)] == f"{100 * mean:.1f}"
    means = [setting.mean for label in rows for setting in settings if setting.label == label]
    assert means[:3] == sorted(means[:3], reverse=True) and means[3] > means[0]  # a seed of the last failed


# --- pairs of classes ---------------------------------------------------------------------------------


def costs(setting: Mapping[str, Any], seed: int) -> dict[str, np.ndarray]:
    """Other ones for each alpha and seed, the same for each mu but 0, which has none."""
    if not setting["mu"]:
        return {}
    rng = np.random.default_rng([seed, int(100 * setting["alpha"])])
    cost = 1 + rng.random((4, 4))
    cost[np.diag_indices(4)] = 0.5, 0.5, 0.5, 9.0
    return {"cost": cost, "correlation": 0.25 * np.eye(4) + 0.75}


def test_heat_maps_are_means_over_seeds(tmp_path: Path) -> None:
    """Kills: a matrix of one seed, rows and columns exchanged, a map for each of the settings that agree, settings
    without any, marks on the correlation, a mark where the diagonal is not least."""
    three = MU | {"values": [0.0, 0.1, 1.0]}
    made = small(tmp_path / "sweep", axes=(three, ALPHA), seeds=(0, 1, 2), matrices=costs, failed=[8])
    found = drawn(made)
    captions = [drawing.caption for drawing in found.values()]
    assert [caption.partition(",")[0] for caption in captions] == [
        "Cost: mu=0.1",  # without the third seed at alpha=0.05
        "Cost: alpha=0.5",
        "Cost: mu=1",
        "Correlation: all settings",
    ]
    assert "the same in 2 settings" in captions[1] and "the same in 4 settings" in captions[3]
    assert all("3 of 4 rows" in caption for caption in captions[:3]) and "rows" not in captions[3]
    assert [len(drawing.figure.axes[0].patches) for drawing in found.values()] == [3, 3, 3, 0]
    for name, setting, seeds in (
        ("matrix-1", {"mu": 0.1, "alpha": 0.05}, (0, 1)),
        ("matrix-2", {"mu": 1.0, "alpha": 0.5}, (0, 1, 2)),
    ):
        mean = np.mean([costs(setting, seed)["cost"] for seed in seeds], axis=0)
        cells = {text.get_position(): text.get_text() for text in found[name].figure.axes[0].texts}
        assert cells == {(column, row): f"{mean[row, column]:.2f}" for row in range(4) for column in range(4)}


def test_maps_of_one_name_share_their_colours(tmp_path: Path) -> None:
    """Kills: colours from the least to the largest of each map, which make unequal costs look alike."""

    def flat(setting: Mapping[str, Any], seed: int) -> dict[str, np.ndarray]:
        cost = np.full((2, 2), 1.0 + 10 * setting["mu"])
        cost[0, 0] = 1.0
        return {"cost": cost}

    found = drawn(small(tmp_path / "sweep", axes=(MU | {"values": [0.1, 1.0]},), seeds=(0,), matrices=flat))
    assert [drawing.figure.axes[0].collections[0].get_clim() for drawing in found.values()] == [(1, 11)] * 2


def test_a_cell_without_a_number_is_left_empty(tmp_path: Path) -> None:
    """Kills: an error for an infinite cost; a scale without end, on which all others look alike."""
    cost = np.array([[0.5, np.inf], [np.nan, 2.0]])
    made = small(tmp_path / "sweep", axes=(), matrices=lambda setting, seed: {"cost": cost + seed})
    (drawing,) = drawn(made).values()
    axes = drawing.figure.axes[0]
    assert {text.get_position(): text.get_text() for text in axes.texts} == {(0, 0): "1.00", (1, 1): "2.50"}
    assert axes.collections[0].get_clim() == (1.0, 2.5)
    assert "in 1 of 2 rows" in drawing.caption


def test_no_more_maps_than_can_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a report of hundreds of heat maps; a limit that leaves a second name out by going below zero."""
    made = small(tmp_path / "sweep", axes=(MU, ALPHA), matrices=costs, failed=[4])
    monkeypatch.setattr("fedskew.lab.figures.classes.MOST_MATRICES", 2)
    assert list(drawn(made)) == ["matrix-1", "matrix-2"]
    results = load(made)
    assert figures.matrix_maps(results, settings_of(results))[1].startswith("The first 2 of 4 matrices. ")


def test_a_page_shows_them(tmp_path: Path) -> None:
    """Kills: a section that is always there or never; a figure without its PNG; ids that two figures share."""
    made = small(tmp_path / "sweep", axes=(TWO, ALPHA), matrices=costs, claims=[claim("class_accuracy[1]")])
    write(made)
    page = page_of(made)
    check_self_contained(page)
    assert 'href="#matrices"' in page.source and 'id="matrices"' in page.source
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    pictures = {path.stem for path in (made / "report").glob("*.png")}
    assert {"classes", "matrix-1", "matrix-2", "matrix-3"} <= pictures
    plain = small(tmp_path / "plain", axes=(TWO,))
    write(plain)
    assert "#matrices" not in page_of(plain).source


def test_a_single_round_has_no_curves(tmp_path: Path) -> None:
    """Kills: a panel with one dot under the heading of curves."""
    one = load(small(tmp_path / "one", axes=(TWO,), rounds=1))
    two = load(small(tmp_path / "two", axes=(TWO,), rounds=2))
    assert figures.curves(one, settings_of(one))[0] == []
    assert len(figures.curves(two, settings_of(two))[0]) == 2
