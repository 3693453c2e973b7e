"""Benchmarks that are sweeps with claims: run or gone on with, judged, as a table and as data for a file."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common import RESULTS, save
from engine.results import load as load_results
from engine.sweeps.options import How
from fedskew.cli import sweep as cli_sweep
from fedskew.lab.comparing.verdicts import judge


def measure(
    console: Console, sweep: str, overrides: Iterable[str], folder: Path, metrics: Iterable[str]
) -> dict[str, Any]:
    """Run the laptop profile of a sweep in ``folder``, or what is left of it; see :func:`measured`.

    Ends the benchmark if it was interrupted, or if every trial failed.
    """
    code = cli_sweep.sweep(sweep, "laptop", list(overrides), folder, How(), None)
    if code:
        raise SystemExit(code)
    return measured(folder, metrics)


def measured(folder: Path, metrics: Iterable[str]) -> dict[str, Any]:
    """A finished sweep: each setting's figures, each claim's verdict with effect and interval."""
    results = load_results(folder)
    claims = []
    for verdict in judge(results):
        about = {name: value for name, value in asdict(verdict).items() if name not in ("claim", "cells")}
        effects = [cell.effect for cell in verdict.cells]  # each the mean over seeds
        claims.append({"text": verdict.claim.text, "margin": verdict.claim.margin, **about, "effects": effects})
    settings = {metric: results.settings(metric).to_dict("records") for metric in metrics if metric in results.trials}
    return {"settings": settings, "claims": claims}


def table(found: Mapping[str, Mapping[str, Any]]) -> Table:
    """Of what :func:`measured` made of several sweeps, by their names."""
    drawn = Table("sweep", "claim", "verdict", "effect", "95 % interval", title="accuracies are fractions")
    for name, result in found.items():
        for one in result["claims"]:
            interval = f"{one['low']:+.3f} to {one['high']:+.3f}"
            drawn.add_row(name, one["text"], one["verdict"], f"{one['effect']:+.3f}", interval)
    return drawn


def main(doc: str | None, name: str, parts: Mapping[str, str], metrics: Iterable[str]) -> int:
    """The command of a benchmark whose ``parts`` are sweeps, by their names: measures, shows and saves them."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="key=value pairs for another setting, of every part")
    parser.add_argument("--only", nargs="+", choices=list(parts), default=list(parts), help="these parts alone")
    parser.add_argument("--runs", type=Path, help="where the sweeps go, and are gone on with; none: a temporary folder")
    parser.add_argument("--name", default=name, help="of the file of results")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for it")
    options = parser.parse_intermixed_args()
    console = Console()
    with tempfile.TemporaryDirectory() as temporary:
        runs = options.runs or Path(temporary)
        found = {part: measure(console, parts[part], options.overrides, runs / part, metrics) for part in options.only}
    console.print(table(found))
    save(options.name, found, options.results)
    return 0
