"""A scaling study in words: its laws, its tables, one page.

FOLDER/
    study.json                    what was asked for, and on which machine
    scaling.parquet               a row for each turn of each setting
    fit.json                      the laws, their residuals, what they predict
    strong.png  weak.png  clients.png  blocks.png  models.png
    scaling.html
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engine.base.files import write_atomically
from fedskew.lab.drawing import Drawing
from fedskew.lab.pages import Fact, Section, render_plain, text_table
from fedskew.lab.pages.tables import Table
from fedskew.lab.scaling import figures as scaling_figures
from fedskew.lab.scaling.figures import UNITS, rate
from fedskew.lab.scaling.law import Prediction
from fedskew.lab.scaling.study import LAWS, Fitted, Row, Study, over_turns

SPREAD = ("mean", "slowest turn", "fastest turn")


def write(study: Study, predict: Iterable[int]) -> tuple[Path, dict[str, Fitted]]:
    """Write everything beside the measurements; the path of the page, and the laws."""
    fitted = study.fitted(predict)
    drawings = {sweep: scaling_figures.over_actors(study, fitted[sweep]) for sweep in LAWS if len(study.of(sweep))}
    drawings |= {
        "clients": scaling_figures.over_clients(study),
        "blocks": scaling_figures.over_blocks(study),
        "models": scaling_figures.over_models(study),
    }
    for name, drawing in drawings.items():
        write_atomically(study.folder / f"{name}.png", drawing.png)
    write_atomically(study.folder / "fit.json", json.dumps(plain(fitted), indent=2, allow_nan=False) + "\n")
    page = render_plain(
        "scaling study",
        "How rounds per second scale",
        study.plan.experiment.name,
        facts(study),
        sections(study, fitted, drawings),
    )
    write_atomically(study.folder / "scaling.html", page)
    return study.folder / "scaling.html", fitted


def plain(fitted: Mapping[str, Fitted]) -> dict[str, Any]:
    """The laws as JSON has them; what is no finite number is null."""

    def finite(values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in values.items()
        }

    described = {}
    for sweep, one in fitted.items():
        if one.fit is None:
            described[sweep] = {"law": None, "why": one.why_not}
            continue
        law = one.fit.law
        described[sweep] = {
            "law": one.fit.name,
            "why": one.fit.why,
            "unit": UNITS[sweep],
            **finite({"lambda": law.rate, "sigma": law.contention, "kappa": law.coherency, "peak": law.peak}),
            "at_bounds": list(one.fit.at_bounds),
            "residuals": [{**asdict(left), "relative": left.relative} for left in one.fit.residuals],
            "interval": "95 %, Student's t over the turns' own fits, of the logarithm",
            "predictions": [finite(asdict(prediction)) for prediction in one.predictions],
        }
    return described


def facts(study: Study) -> list[Fact]:
    """Return what was measured, and where."""
    plan, machine = study.plan, study.machine
    minutes = sum(row["seconds"] for row in study.rows) / 60
    rounds = sum(row["rounds"] for row in study.rows)
    local = plan.experiment.to_mapping()
    nodes = int(machine["nodes"])
    gpus = f", {machine['gpus']:g} GPUs" if machine["gpus"] else ""
    strong = plan.sweeps["strong"][-1]
    return [
        (
            "machine",
            f"{machine['cpus']:g} CPUs{gpus}",
            f"{nodes} node{'s' if nodes > 1 else ''}, {machine['hardware']}",
        ),
        ("round", f"{strong.clients:,} clients", f"of {local['data']['name']}, {strong.model}"),
        ("algorithm", local["algorithm"]["name"], f"on {plan.experiment.execution.device}"),
        ("settings", str(len(plan.settings)), f"{plan.turns} turns each"),
        ("measured", f"{minutes:.1f} min", f"{rounds:,} rounds{_sessions(study)}"),
        ("versions", f"fedskew {machine['fedskew']}", f"torch {machine['torch']}"),
    ]


def _sessions(study: Study) -> str:
    """Say how often it was started, and what else the machine did then."""
    loads = {row["session"]: row["load"] for row in study.rows}
    known = ", ".join(f"{load:.1f}" for load in loads.values() if math.isfinite(load))
    return (f", in {len(loads)} sessions" if len(loads) > 1 else "") + (f"; load before: {known}" if known else "")


def sections(study: Study, fitted: Mapping[str, Fitted], drawings: Mapping[str, Drawing]) -> list[Section]:
    """The page's parts from the most asked for on."""
    most = study.plan.most
    found = [
        Section(
            "Strong scaling: the same round on more actors",
            law_text(fitted["strong"]),
            actors_table(study, fitted["strong"]),
            [drawings["strong"]],
        )
    ]
    if "weak" in drawings:
        first = study.plan.sweeps["weak"][0]
        each = f"Each round has {first.clients // first.actors} clients for each actor."
        found.append(
            Section(
                "Weak scaling: rounds that grow with the actors",
                f"{law_text(fitted['weak'])} {each}",
                actors_table(study, fitted["weak"]),
                [drawings["weak"]],
            )
        )
    predictions = predictions_table(fitted)
    if predictions.rows:
        note = (
            "Interval: 95 %, Student's t over turns, each of which has a fit of its own. It covers what noise between "
            "turns does to the prediction; whether the law holds beyond what was measured, no interval says."
        )
        found.append(Section("Predictions", note, predictions))
    where = f"on {most} actor{'s' if most > 1 else ''}" if most else "in process"
    titles = {
        "clients": ("Clients per round", f"Rounds of different size {where}."),
        "blocks": (
            "Block size",
            f"Clients that go to an actor together, {where}. With fewer blocks than actors, actors idle.",
        ),
        "models": (
            "Model size",
            f"Different models {where}. Models were measured one after another, the other settings in turns.",
        ),
    }
    for sweep, (heading, note) in titles.items():
        found.append(Section(heading, note, sweep_table(study, sweep), [drawings[sweep]]))
    return found


def law_text(one: Fitted) -> str:
    """The law in one paragraph: which, why, its parameters, what they mean."""
    if one.fit is None:
        return f"No law was fitted: {one.why_not}."
    law, bounds = one.fit.law, one.fit.at_bounds
    text = (
        f"{one.fit.name[0].upper()}{one.fit.name[1:]}: {one.fit.why}. "
        f"One actor does {rate(law.rate)} {UNITS[one.sweep]} (λ), contention σ = {law.contention:.3g}, "
        f"coherency κ = {law.coherency:.3g}. "
    )
    if bounds:
        text += f"At the end of what the law allows: {' and '.join(bounds)}; what lies beyond shows in the residuals. "
    if math.isfinite(law.peak):
        text += f"Throughput would fall from {law.peak:,.0f} actors on. "
    return text.rstrip()


def actors_table(study: Study, one: Fitted) -> Table:
    """One row for each number of actors; speed-up and efficiency against one actor, as measured or else as fitted."""
    points = over_turns(study.of(one.sweep), "actors", LAWS[one.sweep])
    alone = next((row["mean"] for row in points if row["actors"] == 1), one.fit.law.rate if one.fit else math.nan)
    left = {residual.actors: residual for residual in one.fit.residuals} if one.fit else {}
    rows = []
    for row in points:
        residual = left.get(row["actors"])
        fitted = ["–"] * 4
        if residual is not None:
            speedup = residual.measured / alone
            fitted = [
                rate(residual.fitted),
                f"{round(100 * residual.relative, 1) + 0.0:+.1f} %",
                f"{speedup:.2f}",
                f"{100 * speedup / residual.actors:.0f} %",
            ]
        name = str(row["actors"]) if row["actors"] else "0 (in process)"
        rows.append([name, f"{row['clients']:,}", f"{row['blocks']:,}", *_rates(row), *fitted])
    head = ("actors", "clients", "blocks", *SPREAD, "law", "residual", "speed-up", "efficiency")
    return text_table((*head[:3], f"{UNITS[one.sweep]}, mean", *head[4:]), rows)


def sweep_table(study: Study, sweep: str) -> Table:
    """One row for each setting."""
    by, label = {
        "clients": ("clients", "clients"),
        "blocks": ("block", "clients in a block"),
        "models": ("model", "model"),
    }[sweep]
    points = over_turns(study.of(sweep), by, "rounds_per_second")
    rows = []
    for row in points:
        shown = f"{row[by]:,}" if by == "clients" else row[by]
        each = 1e3 / (row["mean"] * row["clients"])
        per_client = f"{each:.2f}" if each < 10 else f"{each:,.0f}"
        rows.append([shown, f"{row['parameters']:,}", row["executor"], f"{row['blocks']:,}", *_rates(row), per_client])
    return text_table(
        (label, "parameters", "executor", "blocks", "rounds per second, mean", *SPREAD[1:], "ms per client"), rows
    )


def predictions_table(fitted: Mapping[str, Fitted]) -> Table:
    """One row for each law and number of actors."""
    rows = [
        [str(guess.actors), sweep, f"{rate(guess.value)} {UNITS[sweep]}", interval(guess), guess.note]
        for sweep, one in fitted.items()
        for guess in one.predictions
    ]
    return text_table(("actors", "scaling", "predicted", "interval", "how far to trust it"), rows, prose=(4,))


def interval(prediction: Prediction) -> str:
    return f"{rate(prediction.low)} to {rate(prediction.high)}" if math.isfinite(prediction.low) else "none"


def _rates(row: Row) -> list[str]:
    return [rate(row["mean"]), rate(row["low"]), rate(row["high"])]
