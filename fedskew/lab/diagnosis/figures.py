"""Pictures of client drift: CKA between clients layer by layer, and classifier norms beside class counts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.ticker import NullLocator

from fedskew.lab.drawing import CATEGORIES, MUTED, PAPER, STYLE, Drawing, Sketch
from fedskew.lab.figures.cells import MOST_CELLS, coloured_cells, some_ticks
from fedskew.lab.figures.diagnosed import cka_text

if TYPE_CHECKING:
    from fedskew.lab.diagnosis.diagnosis import Diagnosis

MOST_COLUMNS = 4  # panels beside each other


def drawings(found: Diagnosis) -> list[Drawing]:
    """All pictures of one diagnosed round."""
    return [heat_maps(found), layers(found), norms(found), norms_over_counts(found)]


@matplotlib.rc_context(STYLE)
def heat_maps(found: Diagnosis) -> Drawing:
    """Clients by clients, a panel for each layer, all with the same colours."""
    estimator, names = found.options.estimator, list(found.matrices)
    columns = min(len(names), MOST_COLUMNS)
    rows = math.ceil(len(names) / columns)
    sketch = Sketch(0.7 + 2.1 * columns, 0.3 + 2.3 * rows)
    panels = sketch.figure.subplots(rows, columns, squeeze=False)
    tables = {name: found.matrices[name].of(estimator) for name in names}
    off = np.concatenate([found.matrices[name].pairs(estimator) for name in names])
    known = off[np.isfinite(off)]
    low, high = (float(min(known.min(), 0.999)), 1.0) if len(known) else (0.0, 1.0)
    means = dict(zip(found.layers["layer"], found.layers["cka"], strict=True))
    mesh: Any = None
    small = sum(table.size for table in tables.values()) <= MOST_CELLS
    for axes, name in zip(panels.ravel(), names, strict=False):
        table, clients = tables[name], found.clients
        tips = [
            [f"{name}, clients {a} and {b}: {cka_text(table[i, j])}" for j, b in enumerate(clients)]
            for i, a in enumerate(clients)
        ]
        mesh = coloured_cells(sketch, axes, table, tips if small else None, low, high)
        some_ticks(axes, [str(client) for client in clients], "x")
        some_ticks(axes, [str(client) for client in clients], "y")
        axes.set_title(f"{name}  {cka_text(means[name])}")
    for axes in panels.ravel()[len(names) :]:
        axes.set_visible(False)
    bar = sketch.figure.colorbar(mesh, ax=panels, shrink=0.7, aspect=30)
    bar.outline.set_visible(False)  # type: ignore[operator]
    sketch.figure.supxlabel("client", fontsize=8.5)
    sketch.figure.supylabel("client", fontsize=8.5)
    return sketch.finish(
        "cka",
        f"Linear CKA ({estimator}) between the local models of round {found.facts['round']}, before aggregation, on "
        f"{found.facts['probe_images']:,} test images. Above each panel the mean over pairs.",
        wide=columns > 2,
    )


@matplotlib.rc_context(STYLE)
def layers(found: Diagnosis) -> Drawing:
    """The mean over pairs from the first layer to the logits, with the range of pairs."""
    frame, estimator = found.layers, found.options.estimator
    sketch = Sketch(4.6, 2.9)
    axes = sketch.figure.subplots()
    places = np.arange(len(frame))
    axes.vlines(places, frame["low"], frame["high"], color=CATEGORIES[0], linewidth=1.0)
    marks = axes.scatter(places, frame["cka"], s=36, color=CATEGORIES[0], linewidths=0, zorder=3)
    told = [
        f"{row['layer']}, width {row['width']:,}: {cka_text(row['cka'])}, "
        f"pairs {cka_text(row['low'])} to {cka_text(row['high'])}"
        for row in frame.to_dict("records")
    ]
    sketch.tip(marks, told)
    by_chance = ""
    if estimator == "biased":
        axes.plot(places, frame["chance"], "_", color=MUTED, markersize=12)
        by_chance = " Grey: what unrelated activations of that width would give."
    axes.set_xticks(places, frame["layer"])
    if sum(map(len, frame["layer"])) > 44:
        axes.tick_params(axis="x", labelrotation=30)
    axes.grid(axis="x", visible=False)
    axes.set_xlim(-0.5, len(frame) - 0.5)
    axes.set_ylabel("linear CKA between clients")
    return sketch.finish("layers", f"Linear CKA ({estimator}): mean over pairs of clients, and its range.{by_chance}")


@matplotlib.rc_context(STYLE)
def norms(found: Diagnosis) -> Drawing:
    """Class counts and classifier norms of each client, side by side."""
    clients, classes = len(found.clients), len(found.classes)
    shape = clients, classes
    counts = found.norms["samples"].to_numpy().reshape(shape)
    lengths = found.norms["norm"].to_numpy().reshape(shape)
    sketch = Sketch(7.6, min(max(1.3 + 0.17 * clients, 2.4), 6.0))
    small = 2 * counts.size <= MOST_CELLS
    panels: Any = sketch.figure.subplots(1, 2, sharey=True)
    for axes, table, title in zip(panels, (counts, lengths), ("samples", "classifier norm"), strict=True):
        tips = [
            [
                f"client {client}, {name}: {counts[i, c]:,} samples, norm {cka_text(lengths[i, c])}"
                for c, name in enumerate(found.classes)
            ]
            for i, client in enumerate(found.clients)
        ]
        low, high = float(np.nanmin(table)), float(np.nanmax(table))
        mesh = coloured_cells(sketch, axes, table, tips if small else None, low, high)
        bar = sketch.figure.colorbar(mesh, ax=axes, shrink=0.8)
        bar.outline.set_visible(False)
        some_ticks(axes, [str(number) for number in range(classes)], "x")
        axes.set_title(title)
        axes.set_xlabel("class")
    some_ticks(panels[0], [str(client) for client in found.clients], "y")
    panels[0].set_ylabel("client")
    return sketch.finish(
        "norms", "Training samples of each class, and the norm of the class's row in each local classifier.", wide=True
    )


@matplotlib.rc_context(STYLE)
def norms_over_counts(found: Diagnosis) -> Drawing:
    """A point for each client and class."""
    frame = found.norms.dropna()
    sketch = Sketch(4.6, 2.9)
    axes = sketch.figure.subplots()
    marks = axes.scatter(
        frame["samples"], frame["norm"], s=18, color=CATEGORIES[0], edgecolor=PAPER, linewidths=0.4, clip_on=False
    )
    if len(frame) <= MOST_CELLS:
        told = zip(frame["client"], frame["class"], frame["samples"], frame["norm"], strict=True)
        sketch.tip(marks, [f"client {k}, {found.classes[c]}: {n:,} samples, norm {cka_text(x)}" for k, c, n, x in told])
    most = int(frame["samples"].to_numpy().max())
    if most > 20:
        axes.set_xscale("symlog", linthresh=10)
        ticks = [0, *(10**power for power in range(1, math.floor(math.log10(most)) + 1))]
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(left=0)
    axes.set_xlabel("samples of the class on the client")
    axes.set_ylabel("classifier norm")
    mean = found.figures["norm_correlation"]
    return sketch.finish(
        "norms-counts",
        f"Classifier norm over class samples. Mean over clients of their correlation: {cka_text(mean)}.",
    )
