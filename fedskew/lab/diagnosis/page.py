"""A diagnosed round on disk: tables, pictures and a page that needs nothing else.

RUN/diagnosis/round-000020/                       of a run with stages round-000020-STAGE/
    summary.json                                  what was computed again, with which options, and the figures
    layers.parquet  pairs.parquet  norms.parquet  the tables; *.csv the same
    cka.png  layers.png  norms.png  norms-counts.png
    diagnosis.html
"""

from __future__ import annotations

import json
import math
from pathlib import Path

from engine.base.files import write_atomically
from engine.results import round_folders
from engine.run.replay import Round
from fedskew.lab.diagnosis import figures as drift_figures
from fedskew.lab.diagnosis.diagnosis import Diagnosis
from fedskew.lab.frames import write_frame
from fedskew.lab.pages import Fact, Section, render_plain, text_table
from fedskew.lab.pages.tables import Table


def folder_of(round: Round) -> Path:
    """Return the folder of a round's diagnosis."""
    return round_folders.folder_of(round.folder, "diagnosis", round.experiment, round.stage, round.number)


def write(found: Diagnosis, folder: Path) -> Path:
    """Write everything into ``folder``; the path of the page. Equal diagnoses give equal bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    drawings = drift_figures.drawings(found)
    for name, frame in {"layers": found.layers, "pairs": found.pairs, "norms": found.norms}.items():
        write_frame(frame, folder / name)
    for drawing in drawings:
        write_atomically(folder / f"{drawing.name}.png", drawing.png)
    sections = [
        Section(
            "Layers",
            "Linear CKA between the local models after training and before aggregation, mean over pairs of clients. "
            "Chance: what the biased estimator gives for unrelated activations of this width; the unbiased one, 0.",
            layers_table(found),
        ),
        Section(
            "Classifiers",
            "Correlation, over classes, of a client's samples and the norms of its classifier's rows.",
            heads_table(found),
        ),
        Section("Pictures", drawings=drawings),
    ]
    title = f"Client drift in round {found.facts['round']}"
    page = render_plain("diagnosis", title, found.name, facts(found), sections)
    write_atomically(folder / "diagnosis.html", page)
    # Last: who finds it finds the rest.
    write_atomically(folder / "summary.json", json.dumps(found.summary(), indent=2) + "\n")
    return folder / "diagnosis.html"


def facts(found: Diagnosis) -> list[Fact]:
    """Return what was done, in figures."""
    known = found.facts
    again = known["rounds_again"]
    spans = f"rounds {again[0]} to {again[-1]}" if len(again) > 1 else f"round {again[0]}"
    start = f"from the checkpoint after round {known['from_round']}" if known["from_round"] else "from the beginning"
    return [
        ("stage", known["stage"], f"round {known['round']}"),
        ("computed again", spans, start),
        ("weights", f"{known['weights_sha256'][:12]}…", f"as recorded, in {spans}"),
        ("local models", f"{known['clients']:,}", "of the round's cohort"),
        ("probe", f"{known['probe_images']:,}", "test images, balanced over classes"),
        ("estimator", found.options.estimator, "of linear CKA"),
    ]


def layers_table(found: Diagnosis) -> Table:
    """One row per layer."""
    undefined = bool(found.layers["undefined"].any())
    head = ("layer", "width", "CKA", "lowest pair", "highest pair", "biased", "chance", "unbiased")
    rows = []
    for row in found.layers.to_dict("records"):
        figures = (_text(row[name]) for name in ("cka", "low", "high", "biased", "chance", "unbiased"))
        rows.append([row["layer"], f"{row['width']:,}", *figures, *([str(row["undefined"])] if undefined else [])])
    return text_table((*head, "undefined pairs") if undefined else head, rows)


def heads_table(found: Diagnosis) -> Table:
    """One row per client."""
    heads = found.heads.to_dict("records")
    rows = [[str(row["client"]), f"{row['samples']:,}", _text(row["correlation"])] for row in heads]
    return text_table(("client", "samples", "correlation"), rows)


def _text(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else "–"
