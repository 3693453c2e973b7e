"""Pictures of a run's classes, drawn when it ends.

matrices.png      what the server ended with for each pair of classes
classes.png       how the final model does on each class, and how many clients hold it
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.ticker import MaxNLocator

from engine.base.files import write_atomically
from engine.record import matrices
from engine.record.run_folder import RunFolder
from fedskew.lab.drawing import CATEGORIES, INK, MUTED, STYLE, Sketch
from fedskew.lab.figures.matrices import Panel
from fedskew.lab.figures.panels import slanted
from fedskew.lab.run_pictures.curves import title_of

MOST_COLUMNS = 2  # heat maps beside each other
MOST_NAMED = 30  # classes


@matplotlib.rc_context(STYLE)
def draw_matrices(folder: RunFolder, classes: Sequence[str]) -> None:
    """Write ``matrices.png``, a heat map of each matrix of ``matrices.parquet``."""
    shown = [Panel.of_run(name, matrix) for name, matrix in matrices.load(folder.path).items()]
    columns = min(len(shown), MOST_COLUMNS)
    rows, side = math.ceil(len(shown) / columns), min(max(0.36 * len(classes), 2.4), 6.0)
    sketch = Sketch(columns * (side + 1.6), rows * (side + 0.9) + 0.2)
    panels = sketch.figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, panel in zip(panels, shown, strict=False):
        panel.draw(sketch, axes, numbered(classes), side)
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    sketch.figure.suptitle(
        f"{title_of(folder)}\n{' '.join(panel.note for panel in shown)}".strip(), fontsize=9, x=0.01, ha="left"
    )
    write_atomically(folder.path / "matrices.png", sketch.finish("matrices", "").png)


@matplotlib.rc_context(STYLE)
def draw_classes(folder: RunFolder, counts: np.ndarray, classes: Sequence[str]) -> None:
    """Write ``classes.png``: the global model's accuracy on each class at the end, above it who holds the class.

    counts: int64 [K, C], training samples of each client and class. Nothing is drawn before a global model has been
    evaluated in the last stage.
    """
    last = folder.experiment().chain[-1].name
    rows = [row for row in folder.frame("evaluations").to_dict("records") if row["stage"] == last]
    if not rows or rows[-1]["scope"] != "global":
        return
    accuracy = 100 * np.array(rows[-1]["class_accuracy"], dtype=float)
    places, holders = np.arange(len(classes)), (counts > 0).sum(axis=0)
    sketch = Sketch(min(max(1.2 + 0.5 * len(classes), 4.2), 12.0), 4.2)
    top, main = sketch.figure.subplots(2, 1, sharex=True, height_ratios=[1, 3.2])
    top.bar(places, holders, color=MUTED, width=0.7)
    main.bar(places, accuracy, color=CATEGORIES[0], width=0.7)
    main.axhline(100 * rows[-1]["accuracy"], color=INK, linewidth=0.9, linestyle=(0, (3, 3)))
    if len(classes) <= MOST_NAMED:
        for axes, values, digits in ((top, holders, 0), (main, accuracy, 1)):
            for place, value in zip(places, values, strict=True):
                if np.isfinite(value):
                    above = {"xytext": (0, 1.5), "textcoords": "offset points", "ha": "center", "fontsize": 7.5}
                    axes.annotate(f"{value:.{digits}f}", (place, value), **above)
        top.set_yticks([])
        main.set_xticks(places, numbered(classes))
        if max(map(len, numbered(classes))) > 4:
            slanted(main)
    else:
        main.set_xlabel("class")
        top.yaxis.set_major_locator(MaxNLocator(2, integer=True))
    top.set_ylim(0, 1.25 * len(counts))
    top.set_ylabel("clients\nthat hold it")
    main.set_xlim(-0.6, len(classes) - 0.4)
    main.set_ylim(0, 108)
    main.set_yticks(range(0, 101, 20))
    main.set_ylabel("test accuracy (%)")
    for axes in (top, main):
        axes.grid(axis="x", visible=False)
        axes.tick_params(axis="x", length=0)
    spread = f"standard deviation over classes {np.nanstd(accuracy):.1f} points"
    title = f"{title_of(folder)}\n{100 * rows[-1]['accuracy']:.1f} % over all classes (dashed), {spread}"
    sketch.figure.suptitle(title, fontsize=9, x=0.01, ha="left")
    write_atomically(folder.path / "classes.png", sketch.finish("classes", "").png)


def numbered(classes: Sequence[str]) -> list[str]:
    """Each class by its number, as papers have it, and its name where that is another word."""
    return [name if name == str(number) else f"{number} {name}" for number, name in enumerate(classes)]
