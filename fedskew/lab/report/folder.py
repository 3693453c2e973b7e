"""The files of a report, written beside what they are made from."""

from __future__ import annotations

import json
import logging
import math
import platform
import re
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

import engine
from engine.base.csv_text import csv_text
from engine.base.errors import RunFolderError
from engine.base.files import refuse_links, write_atomically, writing
from engine.base.opening import read_text
from engine.base.owned import Shape, owned
from engine.record import parts
from engine.record.summary import read as read_summary
from engine.results.loading import load, write_trials
from engine.results.results import Results
from engine.results.trials import read_yaml
from fedskew.lab.comparing.effects import ROPE
from fedskew.lab.comparing.intervals import INTERVALS
from fedskew.lab.pages import render
from fedskew.lab.report.claim_views import claims_frame, claims_table
from fedskew.lab.report.sections import Sections, sections_of

log = logging.getLogger("fedskew")

_NUMBER, _POINT = "-[1-9][0-9]*", "(received|post_local|post_server|fine_tuned)"
_FORM = "(png|svg|pdf)"
# Names of the pictures and tables that a report of some sweep has, or had before version 0.2 (SVG, paper.tex,
# report.md and some pictures): a new one takes the place of all of them.
PICTURES_AND_TABLES = Shape(
    (
        rf"(claim|heat|images|matrix|partition|ranks|sensitivity){_NUMBER}\.{_FORM}",
        rf"(class-bars|class-slopes|client-accuracy-{_POINT}|curves-(accuracy|loss|local|{_POINT}))({_NUMBER})?\.{_FORM}",
        rf"(classes|clients|drift|importance|parallel)\.{_FORM}",
        rf"(table{_NUMBER}(-comparisons|-ranks)?|claims|settings|paper)\.tex",
        rf"(table{_NUMBER}(-comparisons|-ranks)?|claim{_NUMBER}-cells|claims|curves|importance|settings|trials)\.csv",
        r"report\.md",
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
    files |= _latex_files(results, sections)
    files |= {"report.json": _summary(results, sections), "report.html": _page(results, sections)}
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


def _latex_files(results: Results, sections: Sections) -> dict[str, str]:
    """Write the tables that a paper may print in LaTeX, each with a label that no other sweep's table has."""
    tables = [(table, view.title) for view in sections.tables for table in view.tables]
    tables += [(sections.best, "")] if sections.best else []
    tables += [(claims_table(sections.claims, results.looks), "")] if sections.claims else []
    sweep = re.sub("[^A-Za-z0-9.]+", "-", results.name)
    return {
        f"{table.name}.tex": table.latex(f"tab:{sweep}:{table.name}", about if about != table.title else "")
        for table, about in tables
    }


def _summary(results: Results, sections: Sections) -> str:
    """Write what the report says for a program: what of the plan is there, and the claims with what they lack."""
    claims = claims_frame(sections.claims).to_dict("records") if sections.claims else []
    plain = _plain({"name": results.name, "coverage": sections.coverage.to_mapping(), "claims": claims})
    return json.dumps(plain, indent=2, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """Return plain data with null for what is no number; JSON has no word for it."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _page(results: Results, sections: Sections) -> str:
    """Render the page, with the sweep as it was asked for, or the run's experiment, in YAML."""
    verdicts = [view.verdict for view in sections.claims]
    sweep = results.path / "sweep.yaml"
    return render(
        "report.html.j2",
        kind="sweep" if sweep.exists() else "run",
        name=results.name,
        profile=results.profile,
        title=results.title,
        facts=sections.facts,
        sections=sections,
        words=[(word, sum(one.verdict == word for one in verdicts)) for word in ("held", "not held", "undecided")],
        interval=INTERVALS[results.looks],
        looks=results.looks,
        equal=any(one.claim.kind == "equal" for one in verdicts),
        origin=read_text(sweep if sweep.exists() else results.path / "experiment.yaml"),
        versions=_computed_with(results),
    )


def _computed_with(results: Results) -> list[tuple[str, str]]:
    """List what the trials were computed with, and with what the report was made."""
    rows, sweep = [("folder", results.path.resolve().name)], results.path / "sweep.yaml"
    if sweep.exists():
        values = read_yaml(sweep)
        rows.append(("digest of the sweep", str(values.get("digest", ""))))
        for name in ("search", "scheduler"):
            rows.append((name, yaml.safe_dump(values.get(name), default_flow_style=True, sort_keys=False).strip()))
    rows.append(("seconds of all trials", f"{results.trials['seconds'].sum():,.1f}"))
    precisions, by_part = set[str](), dict[str, set[str]]()
    for folder in results.trials["folder"]:
        with suppress(RunFolderError):  # it is named as damaged
            if summary := read_summary(results.path / folder):
                precisions.add(summary.get("precision", "not recorded"))
            for place, part in parts.read(results.path / folder).items():
                if part.get("origin") != "fedskew":
                    version = f" {part['version']}" if part.get("version") else ""
                    origin = f"{part.get('origin')} {part.get('place')}{version}, code {part.get('code')}"
                    by_part.setdefault(f"{parts.section_of(place)} {part['name']}", set()).add(origin)
    rows.append(("precision", "; ".join(sorted(precisions)) or "not recorded"))
    rows += [(name, "; ".join(sorted(origins))) for name, origins in sorted(by_part.items())]
    rows.append(("fedskew", engine.__version__))
    rows += [(name, metadata.version(name)) for name in ("torch", "ray", "numpy", "pandas", "scipy", "scikit-learn")]
    return [*rows, ("Python", platform.python_version())]
