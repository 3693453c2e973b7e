"""A scaling study in words: its laws, its tables, one page.

FOLDER/
    study.json                       what was asked for, and on which machine
    scaling.parquet  scaling.csv     a row for each turn of each setting
    fit.json                         the laws, and what they predict
    strong.png  weak.png
    scaling.html
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from engine.base.files import write_atomically
from engine.base.json_text import json_text
from fedskew.lab.pages import Fact, Section, render_plain, text_table
from fedskew.lab.pages.tables import Table
from fedskew.lab.scaling import figures as scaling_figures
from fedskew.lab.scaling.figures import UNITS, rate
from fedskew.lab.scaling.study import LAWS, Fitted, Study, over_turns

INTERVAL = (
    "Interval: 95 %, Student's t over turns, each of which has a fit of its own. It covers what noise between "
    "turns does to the prediction; whether the law holds beyond what was measured, no interval says."
)


def write(study: Study, predict: Iterable[int]) -> tuple[Path, dict[str, Fitted]]:
    """Write everything beside the measurements; the path of the page, and the laws."""
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
            text = f"{law_text(fitted[sweep])} {note}".rstrip()
            sections.append(Section(heading, text, actors_table(study, fitted[sweep]), [drawing]))
    predictions = predictions_table(fitted)
    if predictions.rows:
        sections.append(Section("Predictions", INTERVAL, predictions))
    write_atomically(study.folder / "fit.json", json_text(laws(fitted), indent=2) + "\n")
    title = "How rounds per second scale"
    page = render_plain("scaling study", title, study.experiment.name, facts(study), sections)
    write_atomically(study.folder / "scaling.html", page)
    return study.folder / "scaling.html", fitted


def laws(fitted: Mapping[str, Fitted]) -> dict[str, Any]:
    """The laws with what they predict, as fit.json has them."""
    described: dict[str, Any] = {}
    for sweep, one in fitted.items():
        described[sweep] = {"law": None, "why": one.why_not}
        if (fit := one.fit) is not None:
            parameters = (fit.law.rate, fit.law.contention, fit.law.coherency, fit.law.peak)
            values = dict(zip(("lambda", "sigma", "kappa", "peak"), parameters, strict=True))
            told = {"unit": UNITS[sweep], "predictions": one.predictions}
            described[sweep] = {"law": fit.name, "why": fit.why, **values, **told}
    return described


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


def law_text(one: Fitted) -> str:
    """The law in one paragraph: which, why, its parameters, what they mean."""
    if one.fit is None:
        return f"No law was fitted: {one.why_not}."
    law = one.fit.law
    text = (
        f"{one.fit.name[0].upper()}{one.fit.name[1:]}: {one.fit.why}. "
        f"One actor does {rate(law.rate)} {UNITS[one.sweep]} (λ), contention σ = {law.contention:.3g}, "
        f"coherency κ = {law.coherency:.3g}."
    )
    return text + (f" Throughput would fall from {law.peak:,.0f} actors on." if math.isfinite(law.peak) else "")


def actors_table(study: Study, one: Fitted) -> Table:
    """One row for each number of actors; speed-up and efficiency against one actor, as measured or else as fitted."""
    points = over_turns(study.of(one.sweep), "actors", LAWS[one.sweep])
    alone = next((row["mean"] for row in points if row["actors"] == 1), one.fit.law.rate if one.fit else math.nan)
    rows = []
    for row in points:
        law = ["–"] * 4
        if one.fit is not None and row["actors"]:
            fitted, speedup = one.fit.law(row["actors"]), row["mean"] / alone
            residual = round(100 * (row["mean"] - fitted) / row["mean"], 1) + 0.0  # no -0.0
            law = [rate(fitted), f"{residual:+.1f} %", f"{speedup:.2f}", f"{100 * speedup / row['actors']:.0f} %"]
        name = str(row["actors"]) if row["actors"] else "0 (in process)"
        rates = [rate(row[name]) for name in ("mean", "low", "high")]
        rows.append([name, f"{row['clients']:,}", f"{row['blocks']:,}", *rates, *law])
    rates = (f"{UNITS[one.sweep]}, mean", "slowest turn", "fastest turn")
    return text_table(("actors", "clients", "blocks", *rates, "law", "residual", "speed-up", "efficiency"), rows)


def predictions_table(fitted: Mapping[str, Fitted]) -> Table:
    """One row for each law and number of actors."""
    rows = []
    for sweep, one in fitted.items():
        for guess in one.predictions:
            interval = f"{rate(guess.low)} to {rate(guess.high)}" if math.isfinite(guess.low) else "none"
            rows.append([str(guess.actors), sweep, f"{rate(guess.value)} {UNITS[sweep]}", interval, guess.note])
    return text_table(("actors", "scaling", "predicted", "interval", "how far to trust it"), rows, prose=(4,))
