"""A sweep's trials diagnosed, each at the last round it has done: their figures become columns of the trials table.

    diagnose_sweep(Path("runs/ccvr.cka-laptop-0123456789ab"))
    cka.parquet, cka.csv      one row per trial and layer
    trials/*/diagnosis/       each trial's own tables, pictures and page

``fedskew report`` then shows them, and claims can be made of them: ``cka_logits``, ``cka_lowest_other``,
``cka_logits_margin``, ``cka_mean``, ``norm_correlation`` (see :class:`~engine.analysis.diagnosis.Diagnosis`). A sweep
whose checkpoints are one round apart (``checkpoint.every=1``) computes a single round of each trial again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from engine.analysis import diagnosis_page
from engine.analysis.diagnosis import Options, diagnose
from engine.analysis.settings import setting_label
from engine.analysis.trials import read_json, read_yaml
from engine.errors import FedskewError, RunFolderError
from engine.recompute import find

log = logging.getLogger("fedskew")

TABLE = "cka"


def diagnose_sweep(
    folder: Path,
    number: int | None = None,
    options: Options | None = None,
    overrides: Sequence[str] = (),
    address: str | None = None,
    told: Callable[[str], None] = lambda text: None,
) -> pd.DataFrame:
    """Diagnose each finished trial in round ``number``, or its last; one row per trial and layer.

    What an earlier call has measured with the same options is kept. A trial that cannot be diagnosed is left out, and
    the log says why; if none can, that is an error. ``told`` hears of each trial.
    """
    options = options or Options()
    rows: list[dict[str, Any]] = []
    reasons: list[str] = []
    axes = [axis["name"] for axis in read_yaml(folder / "sweep.yaml")["axes"]]
    finished = [
        (path.parent, record)
        for path in sorted((folder / "trials").glob("*/trial.json"))
        if (record := read_json(path))["status"] == "finished"
    ]
    for place, (trial, record) in enumerate(finished, start=1):
        told(f"{place} of {len(finished)}: trial {record['trial']}")
        try:
            target = _diagnosed(trial, number, options, overrides, address)
        except FedskewError as error:
            log.warning("trial %s is not diagnosed: %s", record["trial"], error)
            reasons.append(str(error))
            continue
        about = read_json(target / "summary.json")
        values = {name: _plain(record["setting"].get(name)) for name in axes}
        label = setting_label({name: record["setting"].get(name) for name in axes})
        start = {"trial": record["trial"], "setting": label, "seed": record["seed"]} | values
        start |= {"stage": about["stage"], "round": about["round"], "estimator": options.estimator}
        layers = pq.read_table(target / "layers.parquet").to_pylist()
        rows += [start | {"depth": depth} | layer for depth, layer in enumerate(layers)]
    if not rows:
        raise RunFolderError(f"{folder} has no trial to diagnose" + (f": {reasons[0]}" if reasons else ""))
    frame = pd.DataFrame(rows)
    diagnosis_page.write_frame(frame, folder / TABLE)
    return frame


def _diagnosed(
    trial: Path, number: int | None, options: Options, overrides: Sequence[str], address: str | None
) -> Path:
    """The folder of the trial's diagnosis, which may have been there already."""
    round = find(trial, number)
    target = diagnosis_page.folder_of(round)
    if (target / "summary.json").exists():
        about = read_json(target / "summary.json")
        same = about["options"] == json.loads(json.dumps(asdict(options)))
        if same and about["weights_sha256"] == round.recorded[round.stage, round.number]:
            return target
    found = diagnose(trial, round.number, options, overrides=overrides, address=address)
    diagnosis_page.write(found, target)
    return target


def _plain(value: Any) -> Any:
    """A cell of a table: an algorithm with its fields is text."""
    return value if value is None or isinstance(value, int | float | str) else json.dumps(value, sort_keys=True)


def means(folder: Path) -> dict[str, dict[str, list[float]]]:
    """Setting -> layer -> the mean CKA of each seed, of a sweep that has been diagnosed; empty for any other."""
    path = folder / f"{TABLE}.parquet"
    found: dict[str, dict[str, list[float]]] = {}
    if path.exists():
        for row in pq.read_table(path, columns=["setting", "layer", "cka"]).to_pylist():
            found.setdefault(row["setting"], {}).setdefault(row["layer"], []).append(row["cka"])
    return found
