"""A scaling study in words: its model, its tables, one page.

FOLDER/
    study.json                       what was asked for, and on which machine
    scaling.parquet  scaling.csv     a row for each turn of each number of actors
    fit.json                         the model, and what it predicts
    scaling.png
    scaling.html
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from engine.base.files import write_atomically
from engine.base.json_text import json_text
from fedskew.lab.pages import Fact, Section, render_plain, text_table
from fedskew.lab.pages.tables import Table
from fedskew.lab.scaling import figures as scaling_figures
from fedskew.lab.scaling.figures import UNIT, rate
from fedskew.lab.scaling.model import Fit, Prediction
from fedskew.lab.scaling.study import MEANS, Study, over_turns

INTERVAL = (
    "Interval: between a round in which the shorter parts hide behind the longest and one in which nothing overlaps, "
    "widened by what turns lie apart from the model (95 %, Student's t)."
)
SHOWN = (*MEANS, "longest_seconds")
PHASES_NOTE = (
    "Means over turns. The phases add up to the round, without what goes on before the next; the longest block is one "
    "of a worker's."
)
REST = "are in no part of it: Ray, a network, what actors add, or what goes on between rounds."


def write(study: Study, predict: Iterable[int]) -> tuple[Path, Fit | None, list[Prediction]]:
    """Write everything beside the measurements; the path of the page, the model, and what it predicts."""
    fitted = study.fitted()
    predictions = [fitted.predict(actors) for actors in sorted(set(predict))] if fitted else []
    drawing = scaling_figures.over_actors(study, fitted, predictions)
    write_atomically(study.folder / "scaling.png", drawing.png)
    sections = [
        Section("The same round on more actors", model_text(fitted), actors_table(study, fitted), [drawing]),
        Section("Phases", PHASES_NOTE, phases_table(study)),
    ]
    if predictions:
        sections.append(Section("Predictions", INTERVAL, predictions_table(predictions)))
    write_atomically(study.folder / "fit.json", json_text(described(fitted, predictions), indent=2) + "\n")
    title = "How rounds per second scale"
    page = render_plain("scaling study", title, study.experiment.name, facts(study), sections)
    write_atomically(study.folder / "scaling.html", page)
    return study.folder / "scaling.html", fitted, predictions


def described(fitted: Fit | None, predictions: Sequence[Prediction]) -> dict[str, Any] | None:
    """The model with what it predicts, as fit.json has it; null where nothing was measured with actors."""
    if fitted is None:
        return None
    about = {"parts": fitted.parts, "apart": fitted.apart, "noise": fitted.noise, "unit": UNIT}
    return {**about, "binding": fitted.parts[fitted.most].binding(fitted.most), "predictions": predictions}


def facts(study: Study) -> list[Fact]:
    """Return what was measured, and where."""
    machine, values = study.machine, study.experiment.to_mapping()
    nodes, gpus = int(machine["nodes"]), f", {machine['gpus']:g} GPUs" if machine["gpus"] else ""
    where = f"{nodes} node{'s' if nodes > 1 else ''}, {machine['hardware']}"
    data = f"of {values['data']['name']}, {values['model']['name']}"
    seconds, rounds = (sum(row[name] for row in study.rows) for name in ("seconds", "rounds"))
    return [
        ("machine", f"{machine['cpus']:g} CPUs{gpus}", where),
        ("round", f"{study.cohort:,} clients", data),
        ("algorithm", values["algorithm"]["name"], f"on {study.experiment.execution.device}"),
        ("measured", f"{seconds / 60:.1f} min", f"{rounds:,} rounds of {len(study.counts)} settings"),
        ("versions", f"fedskew {machine['fedskew']}", f"torch {machine['torch']}"),
    ]


def model_text(fitted: Fit | None) -> str:
    """What binds, and from where on something else does."""
    if fitted is None:
        return "Nothing was measured with actors, so there is no model."
    most = fitted.most
    parts = fitted.parts[most]
    text = (
        f"With {most:,} actors a round is bound by {parts.binding(most)}; {100 * fitted.apart:.0f} % of what could "
        "hide behind that does not."
    ) + f" {rate(1e3 * parts.rest)} ms {REST}" * (parts.rest > 0)
    if most < parts.enough < math.inf:
        text += f" From {parts.enough:,} actors on that would be {parts.binding(round(parts.enough))}."
    return text


def actors_table(study: Study, fitted: Fit | None) -> Table:
    """One row for each number of actors; speed-up and efficiency against one actor, measured or by the model."""
    points = over_turns(study.measured())
    alone = next((row["mean"] for row in points if row["actors"] == 1), fitted.predict(1).value if fitted else math.nan)
    rows = []
    for row in points:
        model = ["–"] * 4
        if fitted is not None and row["actors"]:
            value, speedup = fitted.predict(row["actors"]).value, row["mean"] / alone
            residual = round(100 * (row["mean"] - value) / row["mean"], 1) + 0.0  # no -0.0
            model = [rate(value), f"{residual:+.1f} %", f"{speedup:.2f}", f"{100 * speedup / row['actors']:.0f} %"]
        name = str(row["actors"]) if row["actors"] else "0 (in process)"
        rows.append([name, f"{row['blocks']:,}", *(rate(row[name]) for name in ("mean", "low", "high")), *model])
    rates = (f"{UNIT}, mean", "slowest turn", "fastest turn")
    return text_table(("actors", "blocks", *rates, "model", "residual", "speed-up", "efficiency"), rows)


def phases_table(study: Study) -> Table:
    """Milliseconds of a round by phase, and megabytes that came in, one row for each number of actors."""
    names = (*SHOWN, "bytes_in")
    head = ("actors", *(name.removesuffix("_seconds") + ", ms" for name in SHOWN), "bytes in, MB")
    frame = pd.DataFrame(study.measured()).set_index("actors")[[*names]].mul([1e3] * len(SHOWN) + [1e-6])
    rows = [[str(actors), *map(rate, turns.mean())] for actors, turns in frame.groupby(level=0)]
    return text_table(head, rows)


def predictions_table(predictions: Sequence[Prediction]) -> Table:
    """One row for each number of actors."""
    rows = [
        [str(one.actors), f"{rate(one.value)} {UNIT}", f"{rate(one.low)} to {rate(one.high)}", one.note]
        for one in predictions
    ]
    return text_table(("actors", "predicted", "interval", "what binds, how far to trust it"), rows, prose=(3,))
