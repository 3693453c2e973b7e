"""A metric of a run: all that is said about it, and what several have in common; they are in ``metrics.py``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.base.evaluated import BETTER

Source = Literal[
    "summary.json",  # of the run's folder
    "trial.json",  # of a sweep's trial; summary.json of a run
    "evaluations.parquet",  # and what the analysis makes of it with rounds, exchanges or the partition
    "rounds.parquet",  # of each round, not of a run
    "fedskew diagnose",  # of the last round that it has looked into
    "fedskew images",  # likewise
    "matrices.parquet",
    "clients.parquet",  # and devices that are supposed
]


@dataclass(frozen=True)
class ClientCurve:
    """The curve over rounds that a metric of clients' own models is taken from, see ``personal_metrics.py``."""

    label: str  # in words
    point: str  # of personal.parquet
    column: str = "accuracy"  # of :func:`engine.record.personal_metrics.by_round`
    over: Literal["last", "mean", "std"] = "last"  # of the last evaluated round, or of those in the last ten

    @property
    def label_of_metric(self) -> str:
        return self.label + _OVER[self.over]


_OVER = {
    "last": "",
    "mean": ", mean of the last 10 rounds",
    "std": ", standard deviation over the last 10 rounds",
}


@dataclass(frozen=True)
class Metric:
    """A number that describes a run, and all that is said about it anywhere."""

    name: str  # in summaries, in trials.parquet, in sweeps and claims
    label: str  # for axes and captions
    source: Source
    meaning: str  # in a sentence
    short: str = ""  # for the head of a column; none: the label
    unit: str = ""
    scale: float = 1.0  # from the stored value to the unit
    better: Literal["max", "min"] | None = None  # None: neither more nor less is better by itself
    whole: bool = False  # a count, of rounds say
    reported: bool = False  # by a sweep's trial while it runs
    column: int | None = None  # its place in a report's table of trials; None: it is not there
    curve: ClientCurve | None = None  # of a metric of clients' own models


def share(name: str, label: str, source: Source, meaning: str, **fields: object) -> Metric:
    """Make the metric of a fraction, written in percent; more is better unless ``fields`` say otherwise."""
    return Metric(name, label, source, meaning, **{"unit": "%", "scale": 100.0, "better": "max", **fields})  # type: ignore[arg-type]


def own_models(name: str, short: str, column: int, curve: ClientCurve, meaning: str, **fields: object) -> Metric:
    """Make a metric of clients' own models, of a run that evaluated them (personal.parquet)."""
    better = "min" if curve.over == "std" else "max"
    values = {"short": short, "better": better, "reported": True, "column": column, "curve": curve}
    return share(name, curve.label_of_metric, "summary.json", meaning, **{**values, **fields})


def evaluated(name: str, label: str, column: int, meaning: str, **fields: object) -> Metric:
    """Make the metric of a column of evaluations.parquet; ``meaning``: without when it is measured."""
    values = {"short": label, "reported": True, "column": column, "better": BETTER[name], **fields}
    return share(name, label, "summary.json", f"{meaning} after the last round.", **values)


def by_rows(name: str, rows: str) -> Metric:
    """Make the accuracy on classes by their training rows, with the thresholds of Liu et al., CVPR 2019."""
    meaning = f"Mean test accuracy, after the last round, on the classes of which clients hold {rows} training rows "
    meaning += "(Liu et al., CVPR 2019); NaN where there is none, or where the scope is personal."
    label = f"test accuracy on classes of {rows} training rows"
    return share(f"{name}_accuracy", label, "evaluations.parquet", meaning, short=f"{name} rows")


def skew(name: str, distance: str, further: str = "") -> Metric:
    """Make the metric of a distance between class shares."""
    meaning = f"Mean over the clients that can train of the {distance}{further}, between their class shares and those "
    meaning += "of all their rows."
    return Metric(name, f"{distance} of clients' classes", "summary.json", meaning, short=distance)
