"""The figures of a page, group by group."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
from safetensors import SafetensorError

from engine.base.errors import FedskewError
from engine.results import round_folders
from engine.results.results import Results
from engine.results.settings import key, setting_label
from engine.results.trials import read_json
from fedskew.lab import figures
from fedskew.lab.comparing.importance import importance
from fedskew.lab.comparing.ranking import Setting
from fedskew.lab.drawing import Drawing, drawn
from fedskew.lab.quantities import quantity
from fedskew.lab.report.trial_tables import schedules
from fedskew.lab.wording import capitalised

log = logging.getLogger("fedskew")
MOST_PARTITIONS = 6
MOST_GENERATED = 4  # pictures of generated images
BAND = "Mean over seeds; the band is the 95 % bootstrap interval."
CHANGED = "Hyper-parameters changed in mid-run; a trial stands where it ended. "
GENERATED = (
    "A row for each class. At the right, in the same places, the nearest training images by the root mean square of "
    "the difference of normalised pixels. Of each setting the trial of the first seed."
)
ON_OWN_ROWS = "Each on its client's own test rows, after the last round in which all clients were evaluated."


@dataclass(frozen=True)
class Group:
    """Figures of one kind; without any the section is left out."""

    anchor: str  # and, with a capital, the words of the page's list of sections
    title: str
    drawings: Sequence[Drawing]
    note: str = ""


def figure_groups(results: Results, settings: list[Setting]) -> tuple[list[Group], dict[str, pd.DataFrame]]:
    """Return the groups in the order of the page, and the tables behind them that are no other table."""
    measured = quantity(results.metric, results.target_accuracy)
    none: list[Drawing] = []
    curves, told = drawn("curves", lambda: figures.curves(results, settings), (none, pd.DataFrame()))
    worth = drawn("importance", lambda: importance(results, settings), None)
    bars, trust = ([figures.importance(worth)], worth.note) if worth else ([], "")
    pictures, shown = drawn("partitions", lambda: _partitions(results, settings), (none, ""))
    maps, of_pairs = drawn("matrices", lambda: figures.matrix_maps(results, settings), (none, ""))
    four = (figures.sensitivity, figures.heat_maps, figures.class_accuracy, figures.client_accuracy)
    lines, heat, classes, clients = (drawn(one.__name__, partial(one, results, settings), none) for one in four)
    means = figures.cka_means(results.path)
    over = f"{CHANGED if schedules(results) else ''}{capitalised(measured.title)}."
    groups = [
        Group("curves", "Curves", curves, BAND if len(results.seeds) > 1 else ""),
        Group("sensitivity", "Sensitivity", lines, over),
        Group("pairs", "Two hyper-parameters at a time", heat),
        Group("importance", "Importance of hyper-parameters", bars, trust),
        Group("classes", "Accuracy of each class", classes),
        Group("personal", "Clients one by one", clients, ON_OWN_ROWS),
        Group("matrices", "Pairs of classes", maps, of_pairs),
        Group("drift", "Client drift", [figures.drift(means)] if means else []),
        Group("images", "Generated images", _generated(settings, results), GENERATED),
        Group("partitions", "Partitions", pictures, shown),
    ]
    frames = {"curves": told} if len(told) else {}
    if worth:
        frames["importance"] = worth.frame
    return [group for group in groups if group.drawings], frames


def _generated(settings: list[Setting], results: Results) -> list[Drawing]:
    """Draw the images of the first settings whose trials ``fedskew images`` has looked into."""
    drawings: list[Drawing] = []
    for setting in settings:
        places = [round_folders.latest(results.path / trial["folder"], "images") for trial in setting.trials]
        place = next(filter(None, places), None)
        if place is not None and len(drawings) < MOST_GENERATED:
            name = f"images-{len(drawings) + 1}"
            try:
                summary = read_json(place / "summary.json")
                panels = figures.ImagePanels.load(place / "shown.safetensors", summary["shown"])
                drawings.append(figures.generated_images(name, summary, panels, setting.label))
            except (FedskewError, SafetensorError, OSError, LookupError, TypeError, ValueError) as error:
                log.warning("%s is left out, fedskew images makes it anew: %s: %s", place, type(error).__name__, error)
    return drawings


def _partitions(results: Results, settings: list[Setting]) -> tuple[list[Drawing], str]:
    """Draw one picture for each partition that the sweep draws, with the first seed that has it."""
    names = [axis.name for axis in results.axes if axis.key.partition(".")[0] in ("partition", "data")]
    trials: dict[Any, list[dict[str, Any]]] = {}
    for setting in settings:
        trials.setdefault(key([setting.values[name] for name in names]), []).extend(setting.trials)
    drawings: list[Drawing] = []
    for rows in trials.values():
        if len(drawings) == MOST_PARTITIONS:
            break
        for row in rows:
            try:
                counts = results.class_counts(row["trial"])
            except (FedskewError, OSError):
                continue  # it died before it had one, or the data are on another machine
            title = setting_label({name: row[name] for name in names})
            drawings.append(figures.partition(f"partition-{len(drawings) + 1}", title, counts))
            break
    some = f"The first {len(drawings)} of {len(trials)} partitions. " if len(drawings) < len(trials) else ""
    return drawings, f"{some}Which client holds which classes, in the trial of the first seed."
