"""The report as one HTML page that needs nothing else."""

from __future__ import annotations

import base64
import functools
import hashlib
import platform
from collections.abc import Mapping
from importlib import metadata, resources

import jinja2
import yaml
from markupsafe import Markup

import engine
from engine.analysis.drawing import THEME
from engine.analysis.report.sections import Sections
from engine.analysis.tables import Results
from engine.analysis.trials import read_yaml

COLOURS = {  # beside those of the figures: in the light, in the dark
    "rule": ("#cfd4da", "#3a424d"),
    "shade": ("#f4f5f7", "#1d2229"),
    "link": ("#0b5cad", "#7db8f0"),
    "good": ("#0a6e4b", "#4fcf9f"),
    "bad": ("#b03a06", "#ff9466"),
}


def page(results: Results, sections: Sections) -> str:
    verdicts = [view.verdict for view in sections.claims]
    origin, versions = _origin(results)
    script = _part("page.js")
    return _template().render(
        results=results,
        kind="sweep" if (results.path / "sweep.yaml").exists() else "run",
        sections=sections,
        words=[(word, sum(one.verdict == word for one in verdicts)) for word in ("held", "not held", "undecided")],
        equal=any(one.claim.kind == "equal" for one in verdicts),
        origin=origin,
        versions=versions,
        style=Markup(_theme() + _part("page.css")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        svg=Markup,
    )


def _part(name: str) -> str:
    return resources.files("engine.analysis.report").joinpath(name).read_text(encoding="utf-8")


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(_part("page.html.j2"))


def _theme() -> str:
    light = {name: colour for colour, (name, _) in THEME.items()} | {n: c for n, (c, _) in COLOURS.items()}
    dark = dict(THEME.values()) | {n: c for n, (_, c) in COLOURS.items()}

    def rule(colours: Mapping[str, str], scheme: str) -> str:
        return f"color-scheme:{scheme};" + "".join(f"--{name}:{colour};" for name, colour in colours.items())

    return (
        f":root{{{rule(light, 'light')}}}\n"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{rule(dark, 'dark')}}}}}\n"
        f":root[data-theme=dark]{{{rule(dark, 'dark')}}}\n"
    )


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
    rows.append(("fedskew", engine.__version__))
    rows += [(name, metadata.version(name)) for name in ("torch", "ray", "numpy", "pandas", "scipy", "scikit-learn")]
    rows.append(("Python", platform.python_version()))
    return source.read_text(encoding="utf-8"), rows
