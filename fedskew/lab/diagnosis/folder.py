"""A diagnosed round on disk, tables and pictures, and what of it a terminal shows.

RUN/diagnosis/round-000020/                       of a run with stages round-000020-STAGE/
    summary.json                                  what was computed again, with which options, and the figures
    layers.parquet  pairs.parquet  norms.parquet  the tables; *.csv the same
    cka.png  norms.png
"""

from __future__ import annotations

import math
from pathlib import Path

from engine.base.files import write_atomically
from engine.base.json_text import json_text
from engine.results import round_folders
from fedskew.lab.diagnosis import figures as drift_figures
from fedskew.lab.diagnosis.diagnosis import Diagnosis
from fedskew.lab.frames import write_frame
from fedskew.lab.replay import Round

TextTable = tuple[list[str], list[list[str]]]  # head, rows


def folder_of(round: Round) -> Path:
    """Return the folder of a round's diagnosis."""
    return round_folders.folder_of(round.folder, "diagnosis", round.experiment, round.stage, round.number)


def write(found: Diagnosis, folder: Path) -> None:
    """Write everything into ``folder``. Equal diagnoses give equal bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in {"layers": found.layers, "pairs": found.pairs, "norms": found.norms}.items():
        write_frame(frame, folder / name)
    for drawing in drift_figures.drawings(found):
        write_atomically(folder / f"{drawing.name}.png", drawing.png)
    # Last: who finds it finds the rest.
    write_atomically(folder / "summary.json", json_text(found.summary(), indent=2) + "\n")


def facts(found: Diagnosis) -> dict[str, str]:
    """Return what was done, in figures."""
    known = found.facts
    again = known["rounds_again"]
    spans = f"rounds {again[0]} to {again[-1]}" if len(again) > 1 else f"round {again[0]}"
    start = f"from the checkpoint after round {known['from_round']}" if known["from_round"] else "from the beginning"
    return {
        "stage": f"{known['stage']} (round {known['round']})",
        "computed again": f"{spans} ({start})",
        "weights": f"{known['weights_sha256'][:12]}… (as recorded, in {spans})",
        "local models": f"{known['clients']:,} (of the round's cohort)",
        "probe": f"{known['probe_images']:,} (test images, balanced over classes)",
        "estimator": f"{found.options.estimator} (of linear CKA)",
    }


def tables(found: Diagnosis) -> dict[str, TextTable]:
    """Return the tables of layers and of classifiers as text, by their titles."""
    of_layers = {"cka": "CKA", "low": "lowest pair", "high": "highest pair"}
    of_layers |= {name: name for name in ("biased", "chance", "unbiased")}
    layers = [
        [row["layer"], f"{row['width']:,}", *(_text(row[name]) for name in of_layers), str(row["undefined"])]
        for row in found.layers.to_dict("records")
    ]
    heads = [
        [str(row["client"]), f"{row['samples']:,}", _text(row["correlation"])] for row in found.heads.to_dict("records")
    ]
    return {
        "CKA between clients, mean over pairs": (["layer", "width", *of_layers.values(), "undefined pairs"], layers),
        "class samples and classifier norms": (["client", "samples", "correlation"], heads),
    }


def _text(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else "–"
