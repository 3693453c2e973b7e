"""The files of a report, written beside what they are made from."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

from engine.base.csv_text import csv_text
from engine.base.files import refuse_links, write_atomically, writing
from engine.base.owned import Shape, owned
from engine.results.loading import load, write_trials
from engine.results.results import Results
from fedskew.lab.comparing.effects import ROPE
from fedskew.lab.report import latex
from fedskew.lab.report.claim_views import claims_frame, claims_sheet
from fedskew.lab.report.markdown import markdown
from fedskew.lab.report.page import page
from fedskew.lab.report.sections import Sections, sections_of

log = logging.getLogger("fedskew")

_NUMBER, _POINT = "-[1-9][0-9]*", "(received|post_local|post_server|fine_tuned)"
_FORM = "(png|svg|pdf)"
# Names of the pictures and tables that a report of some sweep has: a new one takes the place of all of them.
PICTURES_AND_TABLES = Shape(
    (
        rf"(claim|heat|images|matrix|partition|ranks|sensitivity){_NUMBER}\.{_FORM}",
        rf"(class-bars|class-slopes|client-accuracy-{_POINT}|curves-(accuracy|loss|local|{_POINT}))({_NUMBER})?\.{_FORM}",
        rf"(classes|clients|drift|importance|parallel)\.{_FORM}",
        rf"(table{_NUMBER}(-comparisons|-ranks)?|claims|settings|paper)\.tex",
        rf"(table{_NUMBER}(-comparisons|-ranks)?|claim{_NUMBER}-cells|claims|curves|importance|settings|trials)\.csv",
    )
)


def write(folder: Path, metric: str | None = None, rope: float = ROPE) -> Path:
    """Write ``report/`` and ``trials.parquet`` into the folder of a sweep or a run; the path of the page.

    The log says what is lacking of a sweep that is not complete, and how to repair it.

    ``metric`` (a column of the trials table) takes the place of the sweep's own. ``rope``: differences of shares up to
    it are worth nothing (0.005 is half a point).
    """
    refuse_links(Path(folder))
    results = load(Path(folder), metric)
    sections = sections_of(results, rope)
    files: dict[str, bytes | str] = {f"{name}.csv": csv_text(frame) for name, frame in sections.frames.items()}
    for drawing in sections.drawings:
        files |= drawing.files
    files |= paper_files(results, sections)
    files["report.json"] = summary(results, sections)
    files |= {"report.md": markdown(results, sections), "report.html": page(results, sections)}
    target = results.path / "report"
    with writing(results.path):
        target.mkdir(exist_ok=True)
        for old in owned(target, PICTURES_AND_TABLES):
            if old.name not in files:
                old.unlink()
        for name, content in files.items():
            write_atomically(target / name, content)
        write_trials(results)
    if not sections.coverage.complete:
        log.warning("%s", " ".join(sections.coverage.sentences(Path(folder))))
    return target / "report.html"


def paper_files(results: Results, sections: Sections) -> dict[str, str]:
    """Write the tables in LaTeX, and a document of them and of all figures."""
    sheets = [(sheet, view.title) for view in sections.tables for sheet in view.sheets]
    if sections.best:
        sheets.append((sections.best, ""))
    if sections.claims:
        sheets.append((claims_sheet(sections.claims, results.looks), ""))
    tables = {
        f"{sheet.name}.tex": latex.table(
            sheet, latex.label_of("tab", results.name, sheet.name), about if about != sheet.title else ""
        )
        for sheet, about in sheets
    }
    return tables | {"paper.tex": latex.document(results.title, results.name, tables, sections.drawings)}


def summary(results: Results, sections: Sections) -> str:
    """Write what the report says for a program: what of the plan is there, and the claims with what they lack."""
    claims = claims_frame(sections.claims).to_dict("records") if sections.claims else []
    plain = {"name": results.name, "coverage": sections.coverage.to_mapping(), "claims": claims}
    return json.dumps(_plain(plain), indent=2, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """Return plain data with null for what is no number; JSON has no word for it."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
