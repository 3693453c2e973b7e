"""A scaling study in words: its models, its tables, one page.

FOLDER/
    study.json                       what was asked for, and on which machine
    scaling.parquet  scaling.csv     a row for each turn of each setting
    fit.json                         the models, and what they predict
    strong.png  weak.png
    scaling.html
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from engine.base.files import write_atomically
from engine.base.json_text import json_text
from fedskew.lab.pages import Fact, Section, render_plain, text_table
from fedskew.lab.pages.tables import Table
from fedskew.lab.scaling import figures as scaling_figures
from fedskew.lab.scaling.figures import UNITS, rate
from fedskew.lab.scaling.study import MEANS, RATES, Fitted, Study, over_turns

INTERVAL = (
    "Interval: between a round in which the shorter parts hide behind the longest and one in which nothing overlaps, "
    "widened by what turns lie apart from the model (95 %, Student's t)."
)
SHOWN = (*MEANS, "longest_seconds")
PHASES_NOTE = "Means over turns. The phases add up to the round; the longest block is one of a worker's."


def write(study: Study, predict: Iterable[int]) -> tuple[Path, dict[str, Fitted]]:
    """Write everything beside the measurements; the path of the page, and the models."""
    fitted = study.fitted(predict)
    each = ""
    if study.sweeps["weak"]:
        first = study.sweeps["weak"][0]
        each = f"Each round has {first.clients // first.actors} clients for each actor."
    titles = {
        "strong": ("Strong scaling: the same round on more actors", ""),
        "weak": ("Weak scaling: rounds that grow with the actors", each),
    }
    sections = []
    for sweep, (heading, note) in titles.items():
        if study.sweeps[sweep]:
            drawing = scaling_figures.over_actors(study, fitted[sweep])
            write_atomically(study.folder / f"{sweep}.png", drawing.png)
            text = f"{model_text(fitted[sweep])} {note}".rstrip()
            sections.append(Section(heading, text, actors_table(study, fitted[sweep]), [drawing]))
            sections.append(Section(f"Phases of {sweep} scaling", PHASES_NOTE, phases_table(study, sweep)))
    predictions = predictions_table(fitted)
    if predictions.rows:
        sections.append(Section("Predictions", INTERVAL, predictions))
    write_atomically(study.folder / "fit.json", json_text(models(fitted), indent=2) + "\n")
    title = "How rounds per second scale"
    page = render_plain("scaling study", title, study.experiment.name, facts(study), sections)
    write_atomically(study.folder / "scaling.html", page)
    return study.folder / "scaling.html", fitted


def models(fitted: Mapping[str, Fitted]) -> dict[str, Any]:
    """The models with what they predict, as fit.json has them; null of a sweep without actors."""
    return {
        sweep: one.fit
        and {**vars(one.fit), "unit": UNITS[sweep], "binding": one.binding, "predictions": one.predictions}
        for sweep, one in fitted.items()
    }


def facts(study: Study) -> list[Fact]:
    """Return what was measured, and where."""
    machine, values = study.machine, study.experiment.to_mapping()
    nodes, gpus = int(machine["nodes"]), f", {machine['gpus']:g} GPUs" if machine["gpus"] else ""
    where = f"{nodes} node{'s' if nodes > 1 else ''}, {machine['hardware']}"
    data = f"of {values['data']['name']}, {values['model']['name']}"
    seconds, rounds = (sum(row[name] for row in study.rows) for name in ("seconds", "rounds"))
    return [
        ("machine", f"{machine['cpus']:g} CPUs{gpus}", where),
        ("round", f"{study.sweeps['strong'][0].clients:,} clients", data),
        ("algorithm", values["algorithm"]["name"], f"on {study.experiment.execution.device}"),
        ("measured", f"{seconds / 60:.1f} min", f"{rounds:,} rounds of {len(study.settings)} settings"),
        ("versions", f"fedskew {machine['fedskew']}", f"torch {machine['torch']}"),
    ]


def model_text(one: Fitted) -> str:
    """What binds, and from where on something else does."""
    if one.fit is None:
        return "Nothing was measured with actors, so there is no model."
    most = max(one.fit.parts)
    parts = one.fit.parts[most]
    text = (
        f"With {most:,} actors a round is bound by {parts.binding(most)}; {100 * one.fit.apart:.0f} % of what could "
        "hide behind that does not."
    ) + f" {rate(1e3 * parts.rest)} ms are in no part of it: Ray, or a network." * (parts.rest > 0)
    if one.sweep == "strong" and most < parts.enough < math.inf:
        text += f" From {parts.enough:,} actors on that would be {parts.binding(round(parts.enough))}."
    return text


def actors_table(study: Study, one: Fitted) -> Table:
    """One row for each number of actors; speed-up and efficiency against one actor, measured or by the model."""
    points = over_turns(study.of(one.sweep), "actors", RATES[one.sweep])
    alone = next((row["mean"] for row in points if row["actors"] == 1), one.at(1).value if one.fit else math.nan)
    rows = []
    for row in points:
        model = ["–"] * 4
        if one.fit is not None and row["actors"]:
            fitted, speedup = one.at(row["actors"]).value, row["mean"] / alone
            residual = round(100 * (row["mean"] - fitted) / row["mean"], 1) + 0.0  # no -0.0
            model = [rate(fitted), f"{residual:+.1f} %", f"{speedup:.2f}", f"{100 * speedup / row['actors']:.0f} %"]
        name = str(row["actors"]) if row["actors"] else "0 (in process)"
        rates = [rate(row[name]) for name in ("mean", "low", "high")]
        rows.append([name, f"{row['clients']:,}", f"{row['blocks']:,}", *rates, *model])
    rates = (f"{UNITS[one.sweep]}, mean", "slowest turn", "fastest turn")
    return text_table(("actors", "clients", "blocks", *rates, "model", "residual", "speed-up", "efficiency"), rows)


def phases_table(study: Study, sweep: str) -> Table:
    """Milliseconds of a round by phase, and megabytes that came in, one row for each number of actors."""
    names = (*SHOWN, "bytes_in")
    head = ("actors", *(name.removesuffix("_seconds") + ", ms" for name in SHOWN), "bytes in, MB")
    rows = []
    for actors, turns in groupby(study.of(sweep), lambda row: row["actors"]):
        means = np.mean([[row[name] for name in names] for row in turns], axis=0) * ([1e3] * len(SHOWN) + [1e-6])
        rows.append([str(actors), *map(rate, means)])
    return text_table(head, rows)


def predictions_table(fitted: Mapping[str, Fitted]) -> Table:
    """One row for each model and number of actors."""
    rows = []
    for sweep, one in fitted.items():
        for guess in one.predictions:
            interval = f"{rate(guess.low)} to {rate(guess.high)}"
            rows.append([str(guess.actors), sweep, f"{rate(guess.value)} {UNITS[sweep]}", interval, guess.note])
    return text_table(
        ("actors", "scaling", "predicted", "interval", "what binds, how far to trust it"), rows, prose=(4,)
    )
