"""Client drift in the settings of a sweep whose trials have been diagnosed."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from matplotlib.ticker import MaxNLocator

from engine.results.trials import columns_of
from fedskew.lab.drawing import CATEGORIES, MIDDLE, Drawing, new_panel, styled
from fedskew.lab.figures.panels import legend, slanted

TABLE = "cka"  # of a sweep's folder: .parquet and .csv, one row per trial and layer


def cka_means(folder: Path) -> dict[str, dict[str, list[float]]]:
    """Setting -> layer -> the mean CKA of each seed, of a sweep that has been diagnosed; empty for any other."""
    path = folder / f"{TABLE}.parquet"
    means: dict[str, dict[str, list[float]]] = {}
    if path.exists():
        for row in columns_of(path, ["setting", "layer", "cka"]).to_pylist():
            means.setdefault(row["setting"], {}).setdefault(row["layer"], []).append(row["cka"])
    return means


@styled
def drift(means: dict[str, dict[str, list[float]]]) -> Drawing:
    """CKA of each layer in each setting of a sweep: setting -> layer -> a value for each seed."""
    figure, axes = new_panel(MIDDLE, 3.0)
    names = list(dict.fromkeys(layer for by_layer in means.values() for layer in by_layer))
    for number, (setting, by_layer) in enumerate(means.items()):
        places = [names.index(layer) for layer in by_layer]
        values = [float(np.nanmean(seeds)) if np.isfinite(seeds).any() else math.nan for seeds in by_layer.values()]
        line = "--" if number >= len(CATEGORIES) else "-"
        axes.plot(places, values, linestyle=line, marker="o", markersize=5, label=setting)
    axes.set_xticks(range(len(names)), names)
    if sum(map(len, names)) > 60:
        slanted(axes)
    axes.grid(axis="x", visible=False)
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.set_ylabel("linear CKA between clients")
    legend(figure)
    caption = "Linear CKA between the local models of the last round, mean over pairs of clients and over seeds."
    return Drawing("drift", caption, figure)


def cka_text(value: float) -> str:
    """Write a similarity, or a correlation, with three digits."""
    return f"{value:.3f}" if math.isfinite(value) else "–"
