"""Figures of single classes and of pairs of classes in a report: which there are, and the numbers behind them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.results import load
from fedskew.lab import figures
from fedskew.lab.comparing.ranking import settings_of
from fedskew.lab.report import write
from tests.support.report_pages import check_self_contained, page_of, small, tips_of
from tests.support.sweep_folders import ALPHA, MU

pytestmark = pytest.mark.slow

TWO = MU | {"values": [0.0, 0.1]}


def claim(metric: str) -> dict[str, Any]:
    sides = {"better": {"mu": 0.1}, "worse": {"mu": 0.0}, "larger_is_better": metric != "class_std"}
    return {"text": metric, "source": "", "metric": metric, **sides}


def drawn(folder: Path) -> dict[str, Any]:
    """The drawings that are about classes, by name."""
    results = load(folder)
    settings = settings_of(results)
    found = figures.class_bars(results, settings) + figures.matrix_maps(results, settings)[0]
    return {drawing.name: drawing for drawing in found}


# --- classes ------------------------------------------------------------------------------------------


def test_bars_are_means_over_seeds(tmp_path: Path) -> None:
    """Kills: bars of another setting, class or seed; a trial that failed; panels without their title."""
    made = small(
        tmp_path / "sweep", axes=(TWO, ALPHA), seeds=(0, 1, 2), failed=[11], claims=[claim("class_accuracy[3]")]
    )
    results, found = load(made), drawn(made)
    assert {name for name in found if "bars" in name} == {"class-bars-1", "class-bars-2"}
    tips = [tip for name in ("class-bars-1", "class-bars-2") for tip in tips_of(found[name].svg)]
    assert len(tips) == 4 * 10
    for setting in settings_of(results):
        finished = [row["class_accuracy"] for row in setting.trials if row["status"] == "finished"]
        assert len(finished) == (2 if setting.values == {"mu": 0.1, "alpha": 0.5} else 3)
        for number, mean in enumerate(np.mean(finished, axis=0)):
            (tip,) = [tip for tip in tips if tip.startswith(f"{setting.label}\nclass {number}: {100 * mean:.1f} %")]
            assert tip.endswith(f"{len(finished)} seeds")
    for place, alpha in enumerate((0.05, 0.5), start=1):
        assert f"alpha={alpha}" in found[f"class-bars-{place}"].caption
        assert all(f"alpha={alpha}\n" in tip for tip in tips_of(found[f"class-bars-{place}"].svg))


@pytest.mark.parametrize("metric", ["class_accuracy[1]", "class_std"])
def test_they_are_there_for_sweeps_that_ask(tmp_path: Path, metric: str) -> None:
    """Kills: figures of classes in every report, or for claims alone, or not for a spread."""
    assert drawn(small(tmp_path / "plain", axes=(TWO,))) == {}
    table = {"title": "By class", "rows": ["mu"], "columns": [], "metric": metric}
    for name, asked in (("claim", {"claims": [claim(metric)]}), ("table", {"tables": [table]})):
        assert {"class-bars"} <= set(drawn(small(tmp_path / name, axes=(TWO,), **asked)))


def test_too_many_bars_are_left_to_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: bars as thin as hairs."""
    made = small(tmp_path / "sweep", axes=(TWO,), claims=[claim("class_std")])
    monkeypatch.setattr("fedskew.lab.figures.classes.MOST_BARS", 19)
    assert "class-bars" not in drawn(made)


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
    marks = [len(re.findall(r"fill:none;stroke:var\(--category-1\)", drawing.svg)) for drawing in found.values()]
    assert marks == [3, 3, 3, 0]
    for name, setting, seeds in (
        ("matrix-1", {"mu": 0.1, "alpha": 0.05}, (0, 1)),
        ("matrix-2", {"mu": 1.0, "alpha": 0.5}, (0, 1, 2)),
    ):
        stack = np.stack([costs(setting, seed)["cost"] for seed in seeds])
        tips = tips_of(found[name].svg)
        assert len(tips) == 16
        mean, std = stack.mean(axis=0)[1, 2], stack.std(axis=0, ddof=1)[1, 2]
        assert tips[4 + 2].endswith(f"\nclass 1, other class 2: {mean:.2f} ± {std:.2f}, {len(seeds)} seeds")
        assert f">{mean:.2f}</text>" in found[name].svg


def test_maps_of_one_name_share_their_colours(tmp_path: Path) -> None:
    """Kills: colours from the least to the largest of each map, which make unequal costs look alike."""

    def flat(setting: Mapping[str, Any], seed: int) -> dict[str, np.ndarray]:
        cost = np.full((2, 2), 1.0 + 10 * setting["mu"])
        cost[0, 0] = 1.0
        return {"cost": cost}

    found = drawn(small(tmp_path / "sweep", axes=(MU | {"values": [0.1, 1.0]},), seeds=(0,), matrices=flat))
    fills = [
        re.findall(r"fill:(#[0-9a-f]{6})[^>]*data-tip|data-tip[^>]*fill:(#[0-9a-f]{6})", one.svg)
        for one in found.values()
    ]
    first, second = (["".join(pair) for pair in pairs] for pairs in fills)
    assert len(first) == len(second) == 4
    assert first[0] == second[0] and first[1] not in (first[0], second[1])


def test_a_cell_without_a_number_is_left_empty(tmp_path: Path) -> None:
    """Kills: an error for an infinite cost; a scale without end, on which all others look alike."""
    cost = np.array([[0.5, np.inf], [np.nan, 2.0]])
    made = small(tmp_path / "sweep", axes=(), matrices=lambda setting, seed: {"cost": cost + seed})
    (drawing,) = drawn(made).values()
    assert [tip.partition("\n")[2] for tip in tips_of(drawing.svg)] == [
        *("class 0, other class 0: 1.00 ± 0.71, 2 seeds", "class 0, other class 1: –"),
        *("class 1, other class 0: –", "class 1, other class 1: 2.50 ± 0.71, 2 seeds"),
    ]
    assert re.findall(r">([\d.]+)</text>", drawing.svg).count("2.50") == 1
    assert "in 1 of 2 rows" in drawing.caption


def test_no_more_maps_than_can_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a report of hundreds of heat maps; a limit that leaves a second name out by going below zero."""
    made = small(tmp_path / "sweep", axes=(MU, ALPHA), matrices=costs, failed=[4])
    monkeypatch.setattr("fedskew.lab.figures.matrices.MOST_MATRICES", 2)
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
    assert {"class-bars-1", "class-bars-2", "matrix-1", "matrix-2", "matrix-3"} <= pictures
    plain = small(tmp_path / "plain", axes=(TWO,))
    write(plain)
    assert "#matrices" not in page_of(plain).source


def test_a_single_round_has_no_curves(tmp_path: Path) -> None:
    """Kills: a panel with one dot under the heading of curves."""
    one = load(small(tmp_path / "one", axes=(TWO,), rounds=1))
    two = load(small(tmp_path / "two", axes=(TWO,), rounds=2))
    assert figures.curves(one, settings_of(one))[0] == []
    assert len(figures.curves(two, settings_of(two))[0]) == 2
