"""The files of a report, written beside what they are made from."""

from __future__ import annotations

import logging
import platform
import re
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import engine
from engine.base.csv_text import csv_text
from engine.base.errors import RunFolderError
from engine.base.files import refuse_links, write_atomically, writing
from engine.base.json_text import json_text
from engine.base.opening import read_text
from engine.base.owned import Shape, owned
from engine.record import parts
from engine.record.summary import read as read_summary
from engine.results.completeness import Completeness
from engine.results.loading import load, write_trials
from engine.results.results import Results
from engine.results.simulated_time import Devices
from fedskew.lab.comparing.effects import ROPE
from fedskew.lab.comparing.intervals import INTERVALS
from fedskew.lab.comparing.ranking import settings_of
from fedskew.lab.pages import render
from fedskew.lab.report.claim_views import claim_views, claims_frame
from fedskew.lab.report.facts import facts, ledger_note
from fedskew.lab.report.figure_groups import figure_groups
from fedskew.lab.report.paper_tables import paper_tables
from fedskew.lab.report.trial_tables import best_settings, failures, slowest, trials_table

log = logging.getLogger("fedskew")
FEWEST_RANKED = 13  # settings; fewer are told apart in the tables alone

_NUMBER, _POINT = "-[1-9][0-9]*", "(received|post_local|post_server|fine_tuned)"
_FORM = "(png|svg|pdf)"
# Names of the pictures and tables that a report of some sweep has, or had before version 0.2 (SVG, paper.tex,
# report.md and some pictures): a new one takes the place of all of them.
PICTURES_AND_TABLES = Shape(
    (
        rf"(claim|heat|images|matrix|partition|ranks|sensitivity){_NUMBER}\.{_FORM}",
        rf"(class-bars|class-slopes|client-accuracy-{_POINT}|curves-(accuracy(-seconds)?|loss|local|{_POINT}))({_NUMBER})?\.{_FORM}",
        rf"(classes|clients|drift|importance|parallel)\.{_FORM}",
        rf"(table{_NUMBER}(-comparisons|-ranks)?|claims|settings|paper)\.tex",
        rf"(table{_NUMBER}(-comparisons|-ranks)?|claim{_NUMBER}-cells|claims|curves|importance|settings|slowest-(actors|clients)|trials)\.csv",
        r"report\.md",
    )
)


def write(folder: Path, metric: str | None = None, rope: float = ROPE, devices: Devices | None = None) -> Path:
    """Write ``report/`` and ``trials.parquet`` into the folder of a sweep or a run; the path of the page.

    The log says what is lacking of a sweep that is not complete, and how to repair it.

    ``metric`` (a column of the trials table) takes the place of the sweep's own. ``rope``: differences of shares up to
    it are worth nothing (0.005 is half a point). ``devices``: what simulated time supposes, in place of the sweep's.
    """
    refuse_links(Path(folder))
    results = load(Path(folder), metric, devices, keep=True)
    files, completeness = _contents(results, rope)
    target = results.path / "report"
    with writing(results.path):
        target.mkdir(exist_ok=True)
        for old in owned(target, PICTURES_AND_TABLES):
            if old.name not in files:
                old.unlink()
        for name, content in files.items():
            write_atomically(target / name, content)
        write_trials(results)
    if not completeness.complete:
        log.warning("%s", " ".join(completeness.sentences(Path(folder))))
    return target / "report.html"


def _contents(results: Results, rope: float) -> tuple[dict[str, bytes | str], Completeness]:
    """Make the files by name; and say what of the plan is there."""
    settings, claims, tables = settings_of(results), claim_views(results, rope), paper_tables(results)
    groups, frames = figure_groups(results, settings)
    trials, slow = trials_table(results), slowest(results)
    in_latex = [(table, view.title) for view in tables for table in view.tables]
    best = None
    if len(settings) >= FEWEST_RANKED or not in_latex:
        best = best_settings(results, settings)
        in_latex += [(best, best.title)] if best else []
    of_claims = [view.cells for view in claims if view.cells]
    frames |= {table.name: table.frame for table in [*(table for table, _ in in_latex), *of_claims, trials, *slow]}
    if claims:
        frames["claims"] = claims_frame(claims)
    # Now that every table has been read: what of them was damaged is known.
    completeness = replace(results.completeness, damage={**results.completeness.damage, **results.unread})
    drawings = [*(view.drawing for view in claims), *(view.diagram for view in tables)]
    drawings += [drawing for group in groups for drawing in group.drawings]
    files: dict[str, bytes | str] = {f"{name}.csv": csv_text(frame) for name, frame in frames.items()}
    for drawing in filter(None, drawings):
        files |= drawing.files
    sweep = re.sub("[^A-Za-z0-9.]+", "-", results.name)  # no other sweep's table has the label
    for table, about in in_latex:
        files[f"{table.name}.tex"] = table.latex(f"tab:{sweep}:{table.name}", about if about != table.title else "")
    lacks = frames["claims"].to_dict("records") if claims else []
    summary = {"name": results.name, "completeness": completeness.to_mapping(), "claims": lacks}
    files["report.json"] = json_text(summary, indent=2) + "\n"
    asked = results.path / "sweep.yaml"
    files["report.html"] = render(
        "report.html.j2",
        kind="sweep" if asked.exists() else "run",
        name=results.name,
        profile=results.profile,
        title=results.title,
        facts=facts(results, settings),
        completeness=completeness,
        claims=claims,
        ledger=ledger_note(results),
        tables=tables,
        best=best,
        groups=groups,
        failures=failures(results),
        trials=trials,
        slow=slow,
        interval=INTERVALS[results.looks],
        looks=results.looks,
        origin=read_text(asked if asked.exists() else results.path / "experiment.yaml"),
        versions=_computed_with(results),
    )
    return files, completeness


def _computed_with(results: Results) -> list[tuple[str, str]]:
    """List what the trials were computed with, and with what the report was made."""
    rows = [("folder", results.path.resolve().name)]
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
