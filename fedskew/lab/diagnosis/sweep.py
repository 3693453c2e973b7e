"""A sweep's trials diagnosed, each at the last round it has done: their figures become columns of the trials table.

    diagnose_sweep(Path("runs/ccvr.cka-laptop-0123456789ab"))
    cka.parquet, cka.csv      one row per trial and layer
    trials/*/diagnosis/       each trial's own tables and pictures

``fedskew report`` then shows them, and claims can be made of them: ``cka_logits``, ``cka_lowest_other``,
``cka_logits_margin``, ``cka_mean``, ``norm_correlation`` (see
:class:`~fedskew.lab.diagnosis.diagnosis.Diagnosis`). A sweep whose checkpoints are one round apart
(``checkpoint.every=1``) computes a single round of each trial again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from engine.results.trials import columns_of, read_json
from fedskew.lab.diagnosis import folder as written
from fedskew.lab.diagnosis.diagnosis import DiagnosisOptions, diagnose
from fedskew.lab.figures.diagnosed import TABLE
from fedskew.lab.frames import write_frame
from fedskew.lab.replay import find
from fedskew.lab.trial_by_trial import trial_by_trial


def diagnose_sweep(
    folder: Path,
    number: int | None = None,
    options: DiagnosisOptions | None = None,
    overrides: Sequence[str] = (),
    address: str | None = None,
    told: Callable[[str], None] = lambda text: None,
) -> pd.DataFrame:
    """Diagnose each finished trial in round ``number``, or its last; one row per trial and layer.

    What an earlier call has measured with the same options is kept. A trial that cannot be diagnosed is left out, and
    the log says why; if none can, that is an error. ``told`` hears of each trial.
    """
    options = options or DiagnosisOptions()
    rows: list[dict[str, Any]] = []
    for start, target, _ in trial_by_trial(
        folder, "diagnose", lambda trial: _diagnosed(trial, number, options, overrides, address), told
    ):
        layers = columns_of(target / "layers.parquet").to_pylist()
        rows += [start | {"estimator": options.estimator, "depth": depth} | row for depth, row in enumerate(layers)]
    frame = pd.DataFrame(rows)
    write_frame(frame, folder / TABLE)
    return frame


def line(frame: pd.DataFrame, folder: Path) -> str:
    """Say how many trials :func:`diagnose_sweep` has diagnosed, and where its table is."""
    return f"diagnosis  {len(set(frame['trial']))} trials, {folder / 'cka.parquet'}"


def _diagnosed(
    trial: Path, number: int | None, options: DiagnosisOptions, overrides: Sequence[str], address: str | None
) -> Path:
    """The folder of the trial's diagnosis, which may have been there already."""
    round = find(trial, number)
    target = written.folder_of(round)
    if (target / "summary.json").exists():
        about = read_json(target / "summary.json")
        same = about["options"] == json.loads(json.dumps(asdict(options)))
        if same and about["weights_sha256"] == round.recorded[round.stage, round.number]:
            return target
    found = diagnose(trial, round.number, options, overrides=overrides, address=address)
    written.write(found, target)
    return target
