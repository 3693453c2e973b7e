"""The files of a report, written beside what they are made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from engine.analysis.loading import load, write_trials
from engine.analysis.report.markdown import markdown
from engine.analysis.report.page import page
from engine.analysis.report.sections import sections_of
from engine.base.files import refuse_links, write_atomically


def write(folder: Path, metric: str | None = None) -> Path:
    """Write ``report/`` and ``trials.parquet`` into the folder of a sweep or a run; the path of the page.

    ``metric`` (a column of the trials table) takes the place of the sweep's own.
    """
    refuse_links(Path(folder))
    results = load(Path(folder), metric)
    sections = sections_of(results)
    files: dict[str, bytes | str] = {f"{name}.csv": _csv(frame) for name, frame in sections.frames.items()}
    files |= {f"{drawing.name}.png": drawing.png for drawing in sections.drawings}
    files |= {"report.md": markdown(results, sections), "report.html": page(results, sections)}
    target = results.path / "report"
    target.mkdir(exist_ok=True)
    for old in [*target.glob("*.png"), *target.glob("*.csv")]:
        if old.name not in files:
            old.unlink()
    for name, content in files.items():
        write_atomically(target / name, content)
    write_trials(results)
    return target / "report.html"


def _csv(frame: pd.DataFrame) -> str:
    plain = frame.copy()
    for name in plain.columns:
        if plain[name].dtype == object:
            plain[name] = pd.Series([_csv_value(value) for value in plain[name].tolist()], dtype=object)
    return plain.to_csv(index=False, lineterminator="\n")


def _csv_value(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return json.dumps(value, sort_keys=True) if isinstance(value, list | tuple | dict) else value
