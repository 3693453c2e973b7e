"""Figures of a report: the numbers behind the marks, colours, scales, units; and which hyper-parameter matters."""

from __future__ import annotations

import hashlib
import io
import math
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from PIL import Image

from engine.results.loading import load
from engine.results.results import Axis
from fedskew.lab import figures
from fedskew.lab.comparing.importance import importance
from fedskew.lab.comparing.ranking import settings_of
from fedskew.lab.comparing.scales import Scale
from fedskew.lab.drawing import Drawing, new_panel, styled
from fedskew.lab.quantities import quantity, quantity_of
from fedskew.lab.report.facts import facts
from tests.support.report_pages import small
from tests.support.sweep_folders import ALPHA, EPOCHS, MU, make_sweep

pytestmark = pytest.mark.slow


def test_a_setting_that_is_drawn_twice_has_no_more_seeds(tmp_path: Path) -> None:
    """Kills: copies of one computation counted as seeds, so that intervals are too narrow."""
    drawn = {**MU, "kind": "sampled", "values": [0.1, 0.1, 1.0]}
    results = load(make_sweep(tmp_path, axes=[drawn], seeds=(0, 1), rounds=2))
    for first, again in (("00000", "00002"), ("00001", "00003")):
        hashes = results.trials.set_index("trial")["weights_sha256"]
        results.trials.loc[results.trials["trial"] == again, "weights_sha256"] = hashes[first]
    assert [len(setting.finished) for setting in settings_of(results)] == [2, 2]


def test_figures_show_the_numbers_behind_them(sweep: Path) -> None:
    """Kills: a mean over other trials, a line of another setting, a band of one seed, cells in another order, points
    that are not trials."""
    results = load(sweep)
    settings = settings_of(results)
    drawings, frame = figures.curves(results, settings)
    curves = results.curves()
    wanted = curves[(curves["mu"] == 0.1) & (curves["alpha"] == 0.5) & (curves["round"] == 6)]["accuracy"]
    drawn = frame[(frame["mu"] == 0.1) & (frame["alpha"] == 0.5) & (frame["round"] == 6)]
    assert drawn[drawn["quantity"] == "accuracy"]["mean"].item() == pytest.approx(wanted.mean())
    assert drawn["seeds"].item() == 3
    (panel,) = [one for one in drawings if "alpha=0.5" in one.caption]
    (line,) = [line for line in panel.figure.axes[0].lines if line.get_label() == "0.1"]
    assert last(line) == pytest.approx(100 * wanted.mean())

    (heat,) = figures.heat_maps(results, settings)
    axes = heat.figure.axes[0]
    names = [[text.get_text() for text in labels] for labels in (axes.get_xticklabels(), axes.get_yticklabels())]
    assert names == [["0", "0.01", "0.1", "1"], ["0.5", "0.05"]]
    cells = {text.get_position(): text.get_text() for text in axes.texts}
    assert len(cells) == len(settings) == 8
    for setting in settings:
        mean = np.mean([row["last10_accuracy"] for row in setting.finished])
        place = names[0].index(f"{setting.values['mu']:g}"), names[1].index(f"{setting.values['alpha']:g}")
        assert cells[place] == f"{100 * mean:.1f}"

    first, _ = figures.sensitivity(results, settings)
    (points,) = first.figure.axes[0].collections
    places = np.asarray(points.get_offsets())
    by_mu = results.trials.dropna(subset="last10_accuracy").groupby("mu")["last10_accuracy"]
    for place, (_, values) in zip(sorted(set(places[:, 0])), by_mu, strict=True):
        np.testing.assert_allclose(np.sort(places[places[:, 0] == place, 1]), 100 * np.sort(values))


def last(line: Any) -> float:
    return float(np.asarray(line.get_ydata())[-1])


def test_local_models_stand_beside_the_global_one(tmp_path: Path) -> None:
    """Kills: rounds without a measurement as 0; another scale than the global model's; panels that lack them; a loss.

    sweep_folders has the local models at half of what the global one has grown to, every second round.
    """
    base = {"evaluation": {"local_every": 2}}
    results = load(small(tmp_path / "one", axes=(MU,), rounds=6, base=base))
    drawings, frame = figures.curves(results, settings_of(results))
    assert [one.name for one in drawings] == ["curves-accuracy", "curves-local", "curves-loss"]
    local = results.local_curves()
    assert sorted(set(local["round"])) == [2, 4, 6]
    drawn = frame[(frame["quantity"] == "local") & (frame["mu"] == 0.1)]
    assert drawn["round"].tolist() == [2, 4, 6]
    wanted = local[(local["mu"] == 0.1) & (local["round"] == 4)]["local_accuracy"].mean()
    assert drawn["mean"].iloc[1] == pytest.approx(wanted) and 0.2 < wanted < 0.45
    assert "before aggregation over rounds" in drawings[1].caption
    assert drawings[0].figure.axes[0].get_ylim() == drawings[1].figure.axes[0].get_ylim()

    two = load(small(tmp_path / "two", axes=(MU, ALPHA), base=base))
    names = [one.name for one in figures.curves(two, settings_of(two))[0]]
    assert names == ["curves-accuracy-1", "curves-accuracy-2", "curves-local-1", "curves-local-2"]


def test_local_models_of_a_branch_are_left_out(tmp_path: Path) -> None:
    """Kills: rounds of a stage that the last one does not come from."""
    stages = [
        {"name": "first", "rounds": 2},
        {"name": "aside", "rounds": 2, "needs": ["first"]},
        {"name": "main", "rounds": 2, "needs": ["first"]},
    ]
    base = {"evaluation": {"local_every": 1}, "stages": stages}
    results = load(small(tmp_path / "s", axes=(), rounds=6, base=base))
    local = results.local_curves()
    assert local[local["seed"] == 0][["stage", "round"]].to_numpy().tolist() == [
        ["first", 1], ["first", 2], ["main", 3], ["main", 4],
    ]  # fmt: skip


def test_the_style_is_the_house_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a reader's matplotlibrc in a report; a style that is left behind; a dollar that starts mathematics."""
    monkeypatch.setitem(matplotlib.rcParams, "axes.facecolor", "black")
    figure, axes = styled(new_panel)(3, 2)
    axes.set_xlabel("$x$ costs 3 $")
    drawing = Drawing("plain", "A figure.", figure)
    with Image.open(io.BytesIO(drawing.png)) as image:
        assert image.size == (600, 400) and image.getpixel((300, 100))[:3] == (255, 255, 255)  # type: ignore[index]
    assert matplotlib.rcParams["axes.facecolor"] == "black"
    assert drawing.address.startswith("data:image/png;base64,")


def test_zero_has_a_place_on_a_logarithmic_axis() -> None:
    """Kills: log(0), values at equal distances, a tick for a value that is not there."""
    axis = Axis("mu", "algorithm.mu", "grid", (0.0, 0.001, 0.1, 1.0), True)
    scale = Scale.of(axis, [0.0, 0.001, 0.1, 1, 1.0])
    assert [scale[value] for value in (0.001, 0.1, 1)] == pytest.approx([-3, -1, 0])
    assert scale[0] < -3 and math.isfinite(scale[0])
    assert [name for _, name in scale.ticks] == ["0", "0.001", "0.1", "1"]
    drawn = Scale.of(axis, list(np.geomspace(1e-3, 10, 40)))
    assert [name for _, name in drawn.ticks] == ["0.001", "0.01", "0.1", "1", "10"]
    words = Scale.of(Axis("option", "k", "grid", ("II", "I", True, [1, 2]), False), ["I", "II", True, [1, 2]])
    assert [words[value] for value in ("II", "I", True, [1, 2])] == [0, 1, 2, 3]
    assert not words.ordered


def test_quantities_are_written_with_their_units() -> None:
    """Kills: a fraction for a percentage, a percentage for a difference of points, 1e9 bytes."""
    accuracy = quantity("last10_accuracy")
    assert accuracy.text(0.81249, unit=True) == "81.2 %"
    assert accuracy.difference(-0.0123, unit=True) == "−1.2 points"
    assert accuracy.difference(0.0123) == "+1.2"
    assert accuracy.difference(-0.00001) == "0.0"
    assert accuracy.text(math.nan) == "–"
    assert quantity("bytes_to_target", 0.7).text(2_500_000, unit=True) == "2.5 MB"
    assert quantity("bytes_to_target", 0.7).title == "traffic to 70 % accuracy (MB)"
    assert quantity("rounds_to_target", 0.725).title == "rounds to 72.5 % accuracy"
    assert quantity("rounds_to_target", 0.7).text(12.0) == "12"
    assert quantity("loss").text(0.123456) == "0.1235"
    assert quantity("client_floats_to_best").text(584_400_000, unit=True) == "584.4 M"
    assert quantity("last10_std").difference(0.004, unit=True) == "+0.4 points"
    assert quantity("local_last10_accuracy").text(0.5) == "50.0"
    assert quantity("step_label_entropy").text(0.85161) == "0.8516"


def test_partitions_of_many_clients_are_a_picture() -> None:
    """Kills: 100,000 bubbles."""
    counts = np.random.default_rng(0).integers(0, 20, (400, 100))
    many = figures.partition("partition-1", "alpha=0.1", counts).figure.axes[0]
    assert len(many.images) == 1 and not many.collections
    few = figures.partition("partition-2", "", np.array([[3, 0], [1, 40]])).figure.axes[0]
    (bubbles,) = few.collections
    assert np.asarray(bubbles.get_offsets()).tolist() == [[0, 0], [1, 0], [1, 1]]
    assert np.argsort(bubbles.get_sizes()).tolist() == [1, 0, 2]  # type: ignore[attr-defined]


def test_importance_finds_what_matters(tmp_path: Path) -> None:
    """Kills: seeds as a hyper-parameter, an order by name, a forest on nothing, praise for one that knows nothing."""
    axes = (MU, EPOCHS | {"values": [1, 2, 4]})
    told = small(tmp_path / "told", axes=axes, accuracy=lambda s, seed: 0.5 + 0.05 * s["epochs"])
    results = load(told)
    worth = importance(results, settings_of(results))
    assert worth is not None
    assert worth.frame["axis"].tolist() == ["epochs", "mu"]
    shares = worth.frame["share"].tolist()
    assert shares[0] > 0.95 and sum(shares) == pytest.approx(1)
    assert worth.unseen > 0.8 and worth.settings == 12 and worth.trials == 24
    assert "R² = 0.9" in worth.note or "R² = 1.0" in worth.note

    luck = small(tmp_path / "luck", axes=axes, accuracy=lambda s, seed: 0.5 + 0.1 * (hash_of(s, seed) % 97) / 97)
    results = load(luck)
    worth = importance(results, settings_of(results))
    assert worth is not None and worth.out_of_bag < 0.3
    assert "do not read anything into the order" in worth.note

    few = load(small(tmp_path / "few", axes=(MU, ALPHA)))
    assert importance(few, settings_of(few)) is None


def hash_of(setting: dict[str, Any], seed: int) -> int:
    return int(hashlib.sha256(repr((sorted(setting.items()), seed)).encode()).hexdigest(), 16)


def test_names_are_not_joined_and_words_fit_the_rounds(tmp_path: Path) -> None:
    """Kills: a line between algorithms; "the last 10 rounds" of six; a best setting that hides its ties, or has some
    where every seed tells it apart."""
    methods = [{"name": "fedavg"}, {"name": "fedprox", "mu": 0.1}]
    axis = {"name": "algorithm", "key": "algorithm", "kind": "grid", "values": methods, "log": False}
    said = []
    for number, luck in enumerate((0.3, 0.0)):
        gains = {"fedavg": 0.0, "fedprox": 0.1}
        folder = make_sweep(
            tmp_path / str(number),
            axes=[axis],
            rounds=6,
            base={"algorithm": methods[0]},
            accuracy=lambda setting, seed, luck=luck, gains=gains: (
                0.5 + 0.01 * seed**2 + gains[setting["algorithm"]["name"]] * (1 - luck * 5 * (seed % 2))
            ),
        )
        results = load(folder)
        settings = settings_of(results)
        (drawing,) = figures.sensitivity(results, settings)
        assert drawing.caption == "algorithm: a point for each trial, the bar is the mean."
        assert quantity_of(results).title == "test accuracy, mean of the last 6 rounds (%)"
        assert quantity_of(results).short == "last 6 rounds (%)"
        said += [detail for name, _, detail in facts(results, settings) if name == "best"]
    assert said == ["fedprox(mu=0.1); 1 other not told apart from it", "fedprox(mu=0.1)"]
    assert quantity_of(load(make_sweep(tmp_path / "long"))).short == "last 10 rounds (%)"
