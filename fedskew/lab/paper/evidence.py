"""What there is to prove anything by: the trials of a folder that can be read, and what they have in common."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from engine.base.errors import RunFolderError
from engine.record.summary import read as read_summary
from engine.results.loading import load
from engine.results.results import Results
from engine.results.settings import label
from engine.results.trials import read_experiment, read_yaml
from fedskew.lab.comparing.verdicts import Verdict, judge


class Evidence:
    """A run or a sweep, read once."""

    def __init__(self, folder: Path) -> None:
        self.results: Results = load(folder)
        path = self.results.path / "sweep.yaml"
        self.sweep: dict[str, Any] = read_yaml(path) if path.exists() else {}

    @cached_property
    def trials(self) -> list[tuple[dict[str, Any], dict[str, Any], Path]]:
        """Experiment, summary and folder of each trial that finished, was stopped, and can be read."""
        found = []
        for row in self.results.trials.to_dict("records"):
            folder = self.results.path / row["folder"]
            with suppress(RunFolderError):
                if row["status"] in ("finished", "stopped") and (summary := read_summary(folder)):
                    found.append((read_experiment(folder / "experiment.yaml"), summary, folder))
        return found

    def configured(self, *path: str) -> list[str]:
        """Return the different values at a place of the experiments, readable; [] if a trial lacks it."""
        return different(_at(experiment, path) for experiment, _, _ in self.trials)

    def recorded(self, *path: str) -> list[str]:
        """Return the different values at a place of the summaries, likewise."""
        return different(_at(summary, path) for _, summary, _ in self.trials)

    @cached_property
    def seeds(self) -> list[int]:
        """List the seeds that have a trial."""
        return sorted({experiment["seed"] for experiment, _, _ in self.trials})

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """Judge the claims of the sweep."""
        return judge(self.results)


def _at(values: Any, path: Iterable[str]) -> Any:
    for name in path:
        values = values.get(name) if isinstance(values, dict) else None
    return values


def different(values: Iterable[Any]) -> list[str]:
    """Return the different values, readable and sorted; [] if one of them is None."""
    found = [None if value is None else label(value) for value in values]
    return [] if None in found else sorted(set(map(str, found)))
