"""Pictures of client drift: CKA between clients layer by layer, and classifier norms beside class counts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fedskew.lab.drawing import Drawing, new_figure, styled
from fedskew.lab.figures.cells import heat_map
from fedskew.lab.figures.diagnosed import cka_text

if TYPE_CHECKING:
    from fedskew.lab.diagnosis.diagnosis import Diagnosis

MOST_COLUMNS = 4  # panels beside each other


def drawings(found: Diagnosis) -> list[Drawing]:
    """All pictures of one diagnosed round."""
    return [heat_maps(found), norms(found)]


@styled
def heat_maps(found: Diagnosis) -> Drawing:
    """Clients by clients, a panel for each layer, all with the same colours."""
    estimator, names = found.options.estimator, list(found.matrices)
    columns = min(len(names), MOST_COLUMNS)
    rows = math.ceil(len(names) / columns)
    figure = new_figure(0.7 + 2.4 * columns, 0.3 + 2.3 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    off = np.concatenate([found.matrices[name].pairs(estimator) for name in names])
    known = off[np.isfinite(off)]
    low, high = (float(min(known.min(), 0.999)), 1.0) if len(known) else (0.0, 1.0)
    means = dict(zip(found.layers["layer"], found.layers["cka"], strict=True))
    clients = [str(client) for client in found.clients]
    for axes, name in zip(panels, names, strict=False):
        heat_map(axes, found.matrices[name].of(estimator), clients, clients, low, high)
        axes.set_title(f"{name}  {cka_text(means[name])}")
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    figure.supxlabel("client", fontsize=8.5)
    figure.supylabel("client", fontsize=8.5)
    return Drawing(
        "cka",
        f"Linear CKA ({estimator}) between the local models of round {found.facts['round']}, before aggregation, on "
        f"{found.facts['probe_images']:,} test images. Above each panel the mean over pairs.",
        figure,
        wide=columns > 2,
    )


@styled
def norms(found: Diagnosis) -> Drawing:
    """Class counts and classifier norms of each client, side by side."""
    clients, classes = [str(client) for client in found.clients], [str(number) for number in range(len(found.classes))]
    figure = new_figure(7.6, min(max(1.3 + 0.17 * len(clients), 2.4), 6.0))
    panels: Any = figure.subplots(1, 2, sharey=True)
    for axes, column, title in zip(panels, ("samples", "norm"), ("samples", "classifier norm"), strict=True):
        table = found.norms[column].to_numpy().reshape(len(clients), len(classes))
        heat_map(axes, table, clients, classes, float(np.nanmin(table)), float(np.nanmax(table)))
        axes.set(title=title, xlabel="class")
    panels[0].set_ylabel("client")
    caption = "Training samples of each class, and the norm of the class's row in each local classifier."
    return Drawing("norms", caption, figure, wide=True)
