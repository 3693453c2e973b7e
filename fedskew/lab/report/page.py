"""The report as one HTML page that needs nothing else."""

from __future__ import annotations

import functools
import platform
from contextlib import suppress
from importlib import metadata

import jinja2
import yaml
from markupsafe import Markup

import engine
from engine.base.errors import RunFolderError
from engine.base.opening import read_text
from engine.record import parts
from engine.record.summary import read
from engine.results.results import Results
from engine.results.trials import read_yaml
from fedskew.lab.comparing.intervals import INTERVALS
from fedskew.lab.pages.theme import dressing, part
from fedskew.lab.report.sections import Sections


def page(results: Results, sections: Sections) -> str:
    verdicts = [view.verdict for view in sections.claims]
    origin, versions = _origin(results)
    return _template().render(
        results=results,
        kind="sweep" if (results.path / "sweep.yaml").exists() else "run",
        sections=sections,
        words=[(word, sum(one.verdict == word for one in verdicts)) for word in ("held", "not held", "undecided")],
        interval=INTERVALS[results.looks],
        looks=results.looks,
        equal=any(one.claim.kind == "equal" for one in verdicts),
        origin=origin,
        versions=versions,
        svg=Markup,
        **dressing(),
    )


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(part("page.html.j2", "fedskew.lab.report"))


def _origin(results: Results) -> tuple[str, list[tuple[str, str]]]:
    """The sweep as it was asked for, or the run's experiment, in YAML; and what it was computed with."""
    sweep = results.path / "sweep.yaml"
    source = sweep if sweep.exists() else results.path / "experiment.yaml"
    rows = [("folder", results.path.resolve().name)]
    if sweep.exists():
        values = read_yaml(sweep)
        rows.append(("digest of the sweep", str(values.get("digest", ""))))
        for name in ("search", "scheduler"):
            rows.append((name, yaml.safe_dump(values.get(name), default_flow_style=True, sort_keys=False).strip()))
    rows.append(("seconds of all trials", f"{results.trials['seconds'].sum():,.1f}"))
    rows.append(("precision", _precision(results)))
    rows += _parts(results)
    rows.append(("fedskew", engine.__version__))
    rows += [(name, metadata.version(name)) for name in ("torch", "ray", "numpy", "pandas", "scipy", "scikit-learn")]
    rows.append(("Python", platform.python_version()))
    return read_text(source), rows


def _parts(results: Results) -> list[tuple[str, str]]:
    """Where the parts that do not ship with fedskew came from, of all trials."""
    found = dict[str, set[str]]()
    for folder in results.trials["folder"]:
        with suppress(RunFolderError):  # it is named as damaged
            for place, one in parts.read(results.path / folder).items():
                if one.get("origin") != "fedskew":
                    version = f" {one['version']}" if one.get("version") else ""
                    told = f"{one.get('origin')} {one.get('place')}{version}, code {one.get('code')}"
                    found.setdefault(f"{parts.section_of(place)} {one['name']}", set()).add(told)
    return [(name, "; ".join(sorted(told))) for name, told in sorted(found.items())]


def _precision(results: Results) -> str:
    """The arithmetic of all trials that have a summary."""
    found = set()
    for folder in results.trials["folder"]:
        with suppress(RunFolderError):  # it is named as damaged
            if summary := read(results.path / folder):
                found.add(summary.get("precision", "not recorded"))
    return "; ".join(sorted(found)) or "not recorded"
